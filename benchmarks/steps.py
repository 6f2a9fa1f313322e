"""The speed of a training under ``fit()`` and launched by hand, for each strategy, with the same options.

By hand means: mpirun for Horovod; for the others each process with its TF_CONFIG, parameter servers included.
"""

from __future__ import annotations

import abc
import argparse
import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.harness import Bar, Numbers, Quiet, Row, median_with_interval
from container.launchers.mpi import REMOTE_SHELL
from container.toolkit import ports
from estimators import MPI, CollectiveAllReduce, ParameterServer, PreflightWarning, TensorFlow

SCRIPTS = harness.HERE / "scripts"
_RATE = "steps_per_second"
_STEP = "median_step_s"
_BAR = Bar(limit=0.99, at_least=True)
#: The timed part of each run, in seconds, and how often each way runs: with the starts, less than five minutes.
SECONDS = 6.0
ROUNDS = 12
#: Steps of the run that is thrown away and says how many make these seconds.
_TRIAL_STEPS = 100
#: A launch by hand that takes longer is stuck, in seconds.
_TIMEOUT = 600.0

#: A rank that waits lets others compute: whatever else runs then costs a step little, rather than a scheduler's slice.
#: For both ways alike.
YIELD = "--mca mpi_yield_when_idle 1"

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


class Training(abc.ABC):
    """One training, to be started in either way.

    Args:
        script: Of ``benchmarks/scripts``.
        distribution: The strategy.
        hosts: Local hosts.
        folder: A folder for what the runs write; no spaces in its path.

    Attributes:
        steps: How many steps are timed.
    """

    def __init__(self, script: str, distribution: Any, hosts: int, folder: Path) -> None:
        self.steps = _TRIAL_STEPS
        self._script = script
        self._distribution = distribution
        self._hosts = hosts
        self._result = folder / "result.json"

    def estimator(self) -> TensorFlow:
        """What ``fit()`` is called on."""
        return TensorFlow(
            entry_point=self._script,
            source_dir=str(SCRIPTS),
            instance_count=self._hosts,
            instance_type="local_process",
            distribution=self._distribution,
            hyperparameters={"steps": self.steps, "result": str(self._result)},
        )

    def by_fit(self) -> Numbers:
        """The steps' speed under ``fit()``, its logs printed."""
        fit_quietly(self.estimator())
        return self._take_result()

    def by_hand(self) -> Numbers:
        """The steps' speed without fleetfit."""
        self._launch()
        return self._take_result()

    @abc.abstractmethod
    def _launch(self) -> None:
        """Run the script by hand, to its end."""

    def _command(self) -> list[str]:
        """The script with its arguments."""
        return [sys.executable, self._script, "--steps", str(self.steps), "--result", str(self._result)]

    def _take_result(self) -> Numbers:
        result = json.loads(self._result.read_text())
        self._result.unlink()
        return {_RATE: float(result["steps_per_second"]), _STEP: float(result["median_step_s"])}


class HorovodTraining(Training):
    """With Horovod; by hand under the mpirun line that ``plan()`` shows, without what is fleetfit's own in it.

    Args:
        hosts: Local hosts.
        processes: Ranks on each.
        folder: See :class:`Training`.
    """

    def __init__(self, hosts: int, processes: int, folder: Path) -> None:
        distribution = MPI(processes_per_host=processes, custom_mpi_options=YIELD)
        super().__init__("train_steps.py", distribution, hosts, folder)
        self._agent = folder / "agent"
        self._agent.write_text(_AGENT)
        self._agent.chmod(0o700)

    def line(self) -> list[str]:
        """That mpirun line: the same hosts and options, the script without the rank wrapper in front of it."""
        planned = self.estimator().plan().mpirun
        assert planned is not None
        end = next(n for n in range(len(planned)) if planned[n : n + 2] == ("rank", "--"))
        options = [str(self._agent) if word == REMOTE_SHELL else word for word in planned[: end - 4]]
        return [*options, *planned[end + 2 :]]

    def _launch(self) -> None:
        run_processes([("mpirun", self.line(), {})])


class CollectiveTraining(Training):
    """With MultiWorkerMirroredStrategy; by hand as two processes with TF_CONFIG.

    Args:
        hosts: Local hosts, of one rank each.
        folder: See :class:`Training`.
    """

    def __init__(self, hosts: int, folder: Path) -> None:
        super().__init__("train_steps_collective.py", CollectiveAllReduce(communication="ring"), hosts, folder)

    def _launch(self) -> None:
        with contextlib.closing(ports.reserve(self._hosts)) as reserved:
            cluster = {"worker": [f"127.0.0.1:{port}" for port in reserved.numbers]}
            run_processes(
                [
                    (f"worker {index}", self._command(), tf_config(cluster, "worker", index))
                    for index in range(self._hosts)
                ]
            )


class ParameterServerTraining(Training):
    """With parameter servers; by hand as a chief and, for each host, a worker and a server, with TF_CONFIG.

    Args:
        hosts: Local hosts, of one worker and one server each.
        folder: See :class:`Training`.
    """

    def __init__(self, hosts: int, folder: Path) -> None:
        super().__init__("train_steps_parameter_server.py", ParameterServer(), hosts, folder)

    def _launch(self) -> None:
        hosts = self._hosts
        with contextlib.closing(ports.reserve(1 + 2 * hosts)) as reserved:
            addresses = [f"127.0.0.1:{port}" for port in reserved.numbers]
            cluster = {"chief": addresses[:1], "worker": addresses[1 : 1 + hosts], "ps": addresses[1 + hosts :]}
            tasks = [("chief", 0), *((kind, index) for kind in ("worker", "ps") for index in range(hosts))]
            run_processes(
                [(f"{kind} {index}", self._command(), tf_config(cluster, kind, index)) for kind, index in tasks],
                end_with_first=True,
            )


def tf_config(cluster: Mapping[str, Sequence[str]], kind: str, index: int) -> dict[str, str]:
    """The variable that says to a process of TensorFlow's which task of which cluster it is."""
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})}


def fit_quietly(estimator: TensorFlow) -> None:
    """Call ``fit()``, with its logs made and thrown away, and wait for what it does after it has returned."""
    with warnings.catch_warnings(), open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        warnings.simplefilter("ignore", PreflightWarning)
        job = estimator.fit()
    harness.wait_for_exit(job.record.read_status()["Fleetfit"]["supervisor_pid"])
    assert job.status == "Completed"  # asking also reaps the supervisor


def run_processes(
    processes: Sequence[tuple[str, Sequence[str], Mapping[str, str]]], *, end_with_first: bool = False
) -> None:
    """Run processes in the scripts' folder until all have ended.

    Args:
        processes: Name, command, and variables on top of this process's.
        end_with_first: Whether the others never end by themselves: they are killed when the first has.

    Raises:
        RuntimeError: one failed; with what it said.
    """
    with contextlib.ExitStack() as stack:
        started = []
        for name, command, variables in processes:
            output = stack.enter_context(tempfile.TemporaryFile())
            process = subprocess.Popen(
                command,
                cwd=SCRIPTS,
                env={**os.environ, **variables},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            stack.callback(_end, process)
            started.append((name, process, output))
        for name, process, output in started[: 1 if end_with_first else None]:
            if process.wait(_TIMEOUT):
                output.seek(0)
                said = output.read().decode("utf-8", "replace")
                raise RuntimeError(f"{name}, by hand, ended with {process.returncode}:\n{said[-5000:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
    process.wait()


def rows(what: str, values: Mapping[str, Sequence[Numbers]], *, ours: str = "fit()", bar: Bar = _BAR) -> list[Row]:
    """Our way ÷ by hand, by round: of the rate of steps, and of the median step.

    Bursts of other load fall on few steps, so the second wobbles less; but it would not see what our way did only now
    and then, which the first does: it is the median of windows of a second, or of a whole block.

    Args:
        what: The training.
        values: ``"by hand"`` and our way -> the numbers of each round.
        ours: What our way is called.
        bar: What both are held against.
    """
    ways = {"by hand": values["by hand"], ours: values[ours]}
    pairs = list(zip(ways[ours], ways["by hand"], strict=True))
    rates = [mine[_RATE] / theirs[_RATE] for mine, theirs in pairs]
    medians = [theirs[_STEP] / mine[_STEP] for mine, theirs in pairs]
    return [
        Row(
            what=f"{what}: steps/s",
            estimate=median_with_interval(rates),
            unit="",
            bar=bar,
            beside={f"{way}, steps/s": statistics.median(n[_RATE] for n in of_way) for way, of_way in ways.items()},
        ),
        Row(
            what=f"{what}: the median step's speed",
            estimate=median_with_interval(medians),
            unit="",
            bar=bar,
            beside={f"{way}, ms": 1e3 * statistics.median(n[_STEP] for n in of_way) for way, of_way in ways.items()},
        ),
    ]


def _measure(options: argparse.Namespace, name: str, what: str, make: Callable[[Path], Training]) -> None:
    """Measure and record."""
    rounds = options.alternations or ROUNDS
    with harness.own_home(), tempfile.TemporaryDirectory(prefix="bench-fleetfit-") as folder:
        quiet = Quiet(options.patience)
        quiet.wait()
        training = make(Path(folder))
        training.steps = math.ceil((options.seconds or SECONDS) / training.by_hand()[_STEP])
        ways = {"by hand": training.by_hand, "fit()": training.by_fit}
        values = harness.alternate(rounds, ways, quiet, warm_up=0)
    samples = {
        "steps": training.steps,
        "steps_per_second": {way: [numbers[_RATE] for numbers in of_way] for way, of_way in values.items()},
        "median_step_s": {way: [numbers[_STEP] for numbers in of_way] for way, of_way in values.items()},
    }
    harness.record(name, rows(what, values), samples, quiet, dry=options.dry)


def run(options: argparse.Namespace) -> None:
    """Horovod, on one host."""
    _measure(
        options,
        "steps",
        "Horovod, fit() ÷ mpirun by hand, 1 host × 2 ranks",
        lambda folder: HorovodTraining(1, 2, folder),
    )


def run_two_hosts(options: argparse.Namespace) -> None:
    """Horovod, with two hosts of one rank each, so that the gradients go over a network interface."""
    _measure(
        options,
        "steps-two-hosts",
        "Horovod, fit() ÷ mpirun by hand, 2 hosts × 1 rank",
        lambda folder: HorovodTraining(2, 1, folder),
    )


def run_collective(options: argparse.Namespace) -> None:
    """MultiWorkerMirroredStrategy."""
    _measure(
        options,
        "steps-collective",
        "MultiWorkerMirrored, fit() ÷ TF_CONFIG by hand, 2 hosts × 1 rank",
        lambda folder: CollectiveTraining(2, folder),
    )


def run_parameter_server(options: argparse.Namespace) -> None:
    """ParameterServerStrategy."""
    _measure(
        options,
        "steps-parameter-server",
        "parameter servers, fit() ÷ TF_CONFIG by hand, 2 workers and 2 servers",
        lambda folder: ParameterServerTraining(2, folder),
    )
