"""Trains a digits classifier on two local hosts with each strategy in turn: what `make train` runs.

One script, ``entrypoints/train.py``, for all of them: only ``distribution`` differs. It ends with a table of the
strategies. With ``--build-horovod`` Horovod is built, if need be, beside the first trainings, and trains last; where it
cannot be built it says so and trains with the others. ``--framework torch`` trains ``entrypoints/train_torch.py``
instead, by torch.distributed and by Horovod.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import threading
import time
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from container.launchers import horovod_builds
from estimators import (
    MPI,
    CollectiveAllReduce,
    ConfigurationError,
    ParameterServer,
    PyTorch,
    TensorFlow,
    TorchDistributed,
    TrainingJob,
    TrainingJobError,
)
from estimators.provision import commands, horovod
from estimators.records.record import jobs_folder

ROOT = Path(__file__).resolve().parent.parent
# Horovod's last: it may still be building.
STRATEGIES = ("collective_all_reduce", "parameter_server", "mpi")
#: Framework -> its strategies, of which each is trained.
FRAMEWORKS = {"tensorflow": STRATEGIES, "torch": ("torch_distributed", "mpi")}
#: What a newcomer may expect of each strategy on this data after so many epochs.
ACCURACY, EPOCHS = 0.95, 20


class HorovodBuild(threading.Thread):
    """Builds and installs Horovod, if it is not there, beside trainings that do not need it.

    Args:
        log: A file for all that is said.
        torch: Whether it is built for PyTorch as well.
    """

    def __init__(self, log: Path, *, torch: bool = False) -> None:
        super().__init__(name="horovod", daemon=True)
        self.log = log
        self._environment = {**os.environ, horovod.FRAMEWORKS: "tensorflow,torch"} if torch else os.environ
        self.lines: list[str] = []
        self.returncode: int | None = None
        self.elapsed_s = 0.0
        self._waited_for = threading.Event()

    def run(self) -> None:
        """Complete the environment; with what the trainings leave of the processors."""
        started = time.monotonic()
        argv = ["nice", "-n", "19", sys.executable, str(ROOT / "estimators" / "provision"), "--venv", sys.prefix]
        finished = commands.run(argv, log=self.log, environment=self._environment, on_line=self._take)
        self.returncode = finished.returncode
        self.elapsed_s = time.monotonic() - started

    def wait(self) -> str | None:
        """Wait for the end and show how it goes meanwhile; return why there is no Horovod, or None."""
        began = time.monotonic()
        if self.is_alive():
            print(*self.lines[-1:], sep="\n", flush=True)
            self._waited_for.set()
        self.join()
        waited_s = time.monotonic() - began
        problems = [line for line in self.lines if line.startswith("fleetfit: ")]
        if self.returncode or problems:
            return "\n".join(problems or [f"Horovod was not built. The whole output is in {self.log}"])
        if self.elapsed_s > 1:
            print(
                f"Horovod was ready after {self.elapsed_s:.0f} s, {max(self.elapsed_s - waited_s, 0):.0f} s of which "
                "were at the same time as other trainings",
                flush=True,
            )
        return None

    def _take(self, line: str) -> None:
        self.lines.append(line)
        if self._waited_for.is_set():
            print(line, flush=True)


def distribution(strategy: str, processes: int) -> MPI | CollectiveAllReduce | ParameterServer | TorchDistributed:
    """The strategy with so many processes on each host; parameter servers have a worker on each."""
    if strategy == "torch_distributed":
        return TorchDistributed(processes_per_host=processes)
    if strategy == "parameter_server":
        return ParameterServer()
    kind = MPI if strategy == "mpi" else CollectiveAllReduce
    return kind(processes_per_host=processes)


def train(strategy: str, options: argparse.Namespace) -> TrainingJob:
    """Run a job to its end.

    Raises:
        TrainingJobError: it failed.
    """
    torch = options.framework == "torch"
    estimator = (PyTorch if torch else TensorFlow)(
        entry_point="train_torch.py" if torch else "train.py",
        source_dir=str(ROOT / "entrypoints"),
        instance_count=options.hosts,
        instance_type="local_process",
        distribution=distribution(strategy, options.processes),
        hyperparameters={"epochs": options.epochs},
        base_job_name=f"digits-{strategy.replace('_', '-')}",
    )
    data = options.data
    return estimator.fit({"train": str(data / "train"), "validation": str(data / "validation")})


def row(strategy: str, job: TrainingJob) -> tuple[list[str], float]:
    """A row of the table, and the validation accuracy."""
    result = job.result()
    accuracy = result.final_metrics.get("val_accuracy", 0.0)
    cells = [
        strategy,
        f"{result.to_first_step_s:.1f} s" if result.to_first_step_s is not None else "–",
        f"{result.samples_per_second:,.0f}" if result.samples_per_second is not None else "–",
        f"{accuracy:.4f}",
    ]
    return cells, accuracy


def made(job: TrainingJob) -> list[str]:
    """The folder of a job, and what it has made there."""
    folder = job.record.path
    checkpoints = sorted(Path(job.checkpoints).glob("checkpoint-*"))
    paths = [*filter(None, [job.model_data]), *checkpoints[-1:]]
    return [f"  {folder.name}", *(f"    {os.path.relpath(path, folder)}" for path in paths)]


def short(path: str) -> str:
    """The path, with ``~`` for the home folder."""
    home = os.path.expanduser("~")
    return f"~{path[len(home) :]}" if path.startswith(f"{home}/") else path


def main() -> int:
    """Train, and say how it went by the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument(
        "--processes", type=int, default=1, help="ranks on each host; with parameter servers, each host has one worker"
    )
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--framework", choices=tuple(FRAMEWORKS), default="tensorflow")
    every = [strategy for strategies in FRAMEWORKS.values() for strategy in strategies]
    parser.add_argument(
        "--strategies",
        nargs="+",
        choices=every,
        metavar="STRATEGY",
        help="strategies to train (default: all strategies of the framework)",
    )
    parser.add_argument(
        "--data", type=Path, default=ROOT / "data" / "digits", help="folder that prepare_digits.py has written"
    )
    parser.add_argument(
        "--build-horovod", action="store_true", help="if Horovod is missing, build it while the other strategies train"
    )
    options = parser.parse_args()
    options.strategies = options.strategies or list(FRAMEWORKS[options.framework])
    if beyond := [name for name in options.strategies if name not in FRAMEWORKS[options.framework]]:
        parser.error(f"--strategies {beyond[0]} is not for --framework {options.framework}")
    if options.framework == "torch" and importlib.util.find_spec("torch") is None:
        parser.error(f"PyTorch is not installed: `{sys.prefix}/bin/fleetfit install torch`.")

    build = HorovodBuild(Path(sys.prefix) / ".fleetfit" / "logs" / "train.log", torch=options.framework == "torch")
    if "mpi" in options.strategies and options.build_horovod:
        build.start()
    elif "mpi" in options.strategies and options.framework not in horovod_builds.built_for(sys.path):
        print(
            f"Horovod is not installed for {options.framework}, so mpi is left out. `fleetfit doctor` tells the "
            "missing parts.",
            flush=True,
        )
        options.strategies.remove("mpi")

    table = Table(box=box.SIMPLE_HEAD)
    for name in ("strategy", "to first step", "samples/s", "val accuracy"):
        table.add_column(name, justify="left" if name == "strategy" else "right", no_wrap=True)
    below: list[str] = []
    problems = []
    for strategy in options.strategies:
        if strategy == "mpi" and options.build_horovod and (why := build.wait()):
            print(f"mpi is left out: {why}", file=sys.stderr, flush=True)
            if build.returncode:
                problems.append("mpi was left out: Horovod could not be built.")
            continue
        try:
            job = train(strategy, options)
        except ConfigurationError as error:
            parser.error(str(error))
        except TrainingJobError as error:
            print(error, file=sys.stderr, flush=True)
            table.add_row(strategy, style="red")
            problems.append(f"{strategy} failed: {error.args[0]}" if error.args else f"{strategy} failed")
            continue
        cells, accuracy = row(strategy, job)
        table.add_row(*cells)
        below += made(job)
        if accuracy < ACCURACY and options.epochs >= EPOCHS:
            problems.append(f"{strategy} reached a validation accuracy of {accuracy:.4f}; {ACCURACY} was expected.")
    if not table.rows:
        print("Nothing was trained.", *problems, sep="\n", file=sys.stderr)
        return 1
    Console(width=80).print(table)
    print(f"Models and checkpoints, in {short(str(jobs_folder()))}:", *below, sep="\n", flush=True)
    for problem in problems:
        print(problem.splitlines()[0], file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        sys.exit(130)
