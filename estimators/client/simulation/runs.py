"""Simulate many runs of a job, with a different seed for each run, on all cores of this machine.

If the runs are expected to take more than five seconds, helper processes simulate a part of them. A helper runs this
module with ``python -m``. It reads a pickled :class:`Question` from standard input, and writes the pickled outcomes to
standard output. Helpers are not forked from this process, because forking a process with threads, such as a notebook's
kernel, is unsafe.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from container.contract.frozen import dataclass
from container.system.host_machine import cpu_count
from container.system.processes import set_death_signal
from estimators.client.simulation import elastic, gang
from estimators.client.simulation.model import RunOutcome, SimulatedJob
from estimators.job.failure_policy import FailurePolicy
from estimators.job.spot_market import SpotMarket
from estimators.supervisor.elastic.policy import Limits

#: Helpers are started only if the remaining runs would take more than this time in one process, in seconds. A helper
#: takes half a second to start.
_WORTH_S = 5.0
#: The folder that contains fleetfit's packages. It is the working directory of helpers, because ``python -m`` searches
#: the working directory first.
_ROOT = Path(__file__).parents[3]
#: Number of runs after which the duration of a run is estimated.
_FIRST = 10


@dataclass(frozen=True, kw_only=True)
class Question:
    """The parameters of a simulation of many runs.

    Attributes:
        job: The job.
        market: The spot market. Run 0 uses the market's seed, and each later run uses the next seed.
        rules: For an elastic job, the limits on the changes of its hosts, as numbers of hosts. For a job that restarts,
            its failure policy.
        limit_s: The simulated time after which a run is aborted, in seconds.
    """

    job: SimulatedJob
    market: SpotMarket
    rules: Limits | FailurePolicy
    limit_s: float

    def runs(self, numbers: range) -> list[RunOutcome]:
        """Simulate the runs with the given numbers, one after another."""
        return [self.run(number) for number in numbers]

    def run(self, number: int) -> RunOutcome:
        """Simulate the run with the given number."""
        market = self.market.of_run(number)
        if isinstance(self.rules, Limits):
            return elastic.run(self.job, market, self.rules, self.limit_s)
        return gang.run(self.job, market, self.rules, self.limit_s)


def outcomes(question: Question, count: int, *, processes: int | None = None) -> tuple[RunOutcome, ...]:
    """Simulate the given number of runs, and return their outcomes.

    The number of processes does not affect the outcomes.

    Args:
        question: The simulation.
        count: The number of runs.
        processes: The number of processes that simulate the runs, including this process. With None, one process for
            each core is used if the runs are expected to take more than 5 seconds, and otherwise only this process.

    Raises:
        RuntimeError: a helper process failed.
    """
    begin = time.perf_counter()
    found = dict(enumerate(question.runs(range(min(count, _FIRST)))))
    rest = range(len(found), count)
    if processes is None:
        takes_s = (time.perf_counter() - begin) / len(found) * len(rest)
        processes = cpu_count() if takes_s > _WORTH_S else 1
    mine, *others = (rest[number::processes] for number in range(processes))
    with contextlib.ExitStack() as stack:
        helpers = [(part, stack.enter_context(_helper(question, part))) for part in others if part]
        found.update(zip(mine, question.runs(mine), strict=True))
        for part, helper in helpers:
            assert helper.stdout is not None
            answer = helper.stdout.read()
            if helper.wait():
                raise RuntimeError(
                    f"a simulation process ended with exit code {helper.returncode}; its error output is above"
                )
            found.update(zip(part, pickle.loads(answer), strict=True))
    return tuple(found[number] for number in range(count))


@contextlib.contextmanager
def _helper(question: Question, numbers: range) -> Iterator[subprocess.Popen[bytes]]:
    argv = [sys.executable, "-m", "estimators.client.simulation.runs", str(os.getpid())]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, cwd=_ROOT) as process:
        try:
            assert process.stdin is not None
            process.stdin.write(pickle.dumps((question, numbers)))
            process.stdin.close()
            yield process
        finally:
            process.kill()


def _help() -> None:
    set_death_signal(signal.SIGKILL, int(sys.argv[1]))
    question, numbers = pickle.load(sys.stdin.buffer)
    sys.stdout.buffer.write(pickle.dumps(question.runs(numbers)))


if __name__ == "__main__":
    _help()
