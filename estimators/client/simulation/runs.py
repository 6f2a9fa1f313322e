"""The runs of a simulation, each with a seed of its own; many of them on all cores of this machine.

Run as a module, it is one of the processes that help: it reads a pickled question from its standard input, and writes
the pickled outcomes to its standard output. Nothing is forked: a notebook has threads.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from container.system.host_machine import cpu_count
from container.system.processes import set_death_signal
from estimators.client.simulation import elastic, gang
from estimators.client.simulation.model import RunOutcome, SimulatedJob
from estimators.job.failure_policy import FailurePolicy
from estimators.job.spot_market import SpotMarket
from estimators.supervisor.elastic.policy import Limits

#: Other processes help where the rest would take one so many seconds: they take half of one to start.
_WORTH_S = 5.0
#: Where this package is imported from: ``-m`` looks in the current folder first, which may hold anything.
_ROOT = Path(__file__).parents[3]
#: After so many runs it is known how long one takes.
_FIRST = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class Question:
    """What is simulated.

    Attributes:
        job: The job.
        market: Its seed is that of run 0; each further run has the next one.
        rules: How much the membership of an elastic job may change at once, in hosts; or what follows an attempt of
            a job that restarts.
        limit_s: After how many seconds a run is given up.
    """

    job: SimulatedJob
    market: SpotMarket
    rules: Limits | FailurePolicy
    limit_s: float

    def runs(self, numbers: range) -> list[RunOutcome]:
        """Simulate runs, one after the other."""
        return [self.run(number) for number in numbers]

    def run(self, number: int) -> RunOutcome:
        """Simulate one run."""
        market = dataclasses.replace(self.market, seed=self.market.seed + number)
        if isinstance(self.rules, Limits):
            return elastic.run(self.job, market, self.rules, self.limit_s)
        return gang.run(self.job, market, self.rules, self.limit_s)


def outcomes(question: Question, count: int, *, processes: int | None = None) -> tuple[RunOutcome, ...]:
    """Simulate so many runs; which process does which changes nothing.

    Args:
        question: What is simulated.
        count: How many runs.
        processes: How many processes share them, this one included. None: one for each core, if it takes long.
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
