"""The speed of a Horovod training under ``fit()`` and by hand under mpirun, with the same mpirun options."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import statistics
import subprocess
import tempfile
import warnings
from pathlib import Path

from benchmarks import harness
from benchmarks.harness import Bar, Numbers, Quiet, Row, median_with_interval
from container.launchers.mpi import REMOTE_SHELL
from estimators import MPI, PreflightWarning, TensorFlow

_SCRIPT = harness.HERE / "scripts" / "train_steps.py"
_RATE = "steps/s"
_BAR = Bar(limit=0.99, at_least=True)
#: The timed part of each run, in seconds.
_SECONDS = 10.5
#: Steps of the run that is thrown away and says how many make these seconds.
_TRIAL_STEPS = 500

#: What stands in for a remote shell when mpirun is called by hand: the host's command, in a shell, with a folder of its
#: own for the session files, since all hosts are this machine.
_AGENT = """\
#!/bin/sh
TMPDIR="$0.$1"
export TMPDIR
mkdir -p "$TMPDIR"
shift
exec /bin/sh -c "$*"
"""


class Training:
    """One training, to be started in either way.

    Args:
        hosts: Local hosts.
        processes: Ranks on each.
        folder: A folder for what the runs write; no spaces in its path.
    """

    def __init__(self, hosts: int, processes: int, folder: Path) -> None:
        self.hosts = hosts
        self.processes = processes
        self.steps = _TRIAL_STEPS
        self._result = folder / "result.json"
        self._agent = folder / "agent"
        self._agent.write_text(_AGENT)
        self._agent.chmod(0o700)

    def _estimator(self) -> TensorFlow:
        return TensorFlow(
            entry_point=_SCRIPT.name,
            source_dir=str(_SCRIPT.parent),
            instance_count=self.hosts,
            instance_type="local_process",
            distribution=MPI(processes_per_host=self.processes),
            hyperparameters={"steps": self.steps, "result": str(self._result)},
        )

    def by_fit(self) -> Numbers:
        """Steps per second under ``fit()``, its logs printed."""
        with warnings.catch_warnings(), open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            warnings.simplefilter("ignore", PreflightWarning)
            job = self._estimator().fit()
        harness.wait_for_exit(job.record.read_status()["Fleetfit"]["supervisor_pid"])
        assert job.status == "Completed"  # asking also reaps the supervisor
        return self._take_result()

    def by_hand(self) -> Numbers:
        """Steps per second under the mpirun line that ``plan()`` shows, without what is fleetfit's own in it."""
        done = subprocess.run(self.line(), cwd=_SCRIPT.parent, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"mpirun by hand ended with {done.returncode}:\n{done.stderr[-5000:]}")
        return self._take_result()

    def line(self) -> list[str]:
        """That mpirun line: the same hosts and options, the script without the rank wrapper in front of it."""
        planned = self._estimator().plan().mpirun
        assert planned is not None
        end = next(n for n in range(len(planned)) if planned[n : n + 2] == ("rank", "--"))
        options = [str(self._agent) if word == REMOTE_SHELL else word for word in planned[: end - 4]]
        return [*options, *planned[end + 2 :]]

    def _take_result(self) -> Numbers:
        result = json.loads(self._result.read_text())
        self._result.unlink()
        return {_RATE: float(result["steps_per_second"])}


def run(options: argparse.Namespace, hosts: int = 1, processes: int = 2, name: str = "steps") -> None:
    """Measure and record."""
    rounds = options.alternations or 10
    with harness.own_home(), tempfile.TemporaryDirectory(prefix="fleetfit-bench-") as folder:
        quiet = Quiet(options.patience)
        quiet.wait()
        training = Training(hosts, processes, Path(folder))
        training.steps = math.ceil(training.by_hand()[_RATE] * _SECONDS)
        ways = {"mpirun": training.by_hand, "fit()": training.by_fit}
        values = harness.alternate(rounds, ways, quiet, warm_up=0)
    rates = {way: [numbers[_RATE] for numbers in rounds_of_way] for way, rounds_of_way in values.items()}
    ratios = [fit / bare for fit, bare in zip(rates["fit()"], rates["mpirun"], strict=True)]
    where = "1 host × 2 ranks" if hosts == 1 else f"{hosts} hosts × {processes} rank"
    row = Row(
        what=f"Horovod steps/s, fit() ÷ mpirun by hand, {where}",
        estimate=median_with_interval(ratios),
        unit="",
        bar=_BAR,
        beside={f"{way}, steps/s": statistics.median(numbers) for way, numbers in rates.items()},
    )
    samples = {"steps": training.steps, "steps_per_second": rates}
    harness.record(name, [row], samples, quiet, dry=options.dry)


def run_two_hosts(options: argparse.Namespace) -> None:
    """The same with two hosts of one rank each, so that the gradients go over a network interface."""
    run(options, hosts=2, processes=1, name="steps-two-hosts")
