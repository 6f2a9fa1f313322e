"""What a change of the membership costs: fleetfit and horovodrun, on the same script, in one run, alternating.

A worker is killed, a host joins, a host leaves; what is timed is from the act to the end of the first step of the ranks
that go on, at the new size. horovodrun knows this machine by three names. A training that is not elastic is killed too:
``fit()`` starts its gang again, and horovodrun is started again by hand as soon as it has ended.
"""

from __future__ import annotations

import abc
import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.harness import Bar, Numbers, Quiet, Row, median_with_interval
from estimators import (
    MPI,
    ElasticHorovod,
    FailurePolicy,
    PreflightWarning,
    RunOptions,
    TensorFlow,
    TrainingJob,
    TrainingJobError,
)

_SCRIPTS = harness.HERE / "scripts"
_SCRIPT = "elastic_steps.py"
#: A change that takes longer is stuck, in seconds.
_TIMEOUT = 60.0
#: A round of all ways takes some two minutes.
_ROUNDS = 2
#: Steps at a size before the next change.
_SETTLED = 20


class Run(abc.ABC):
    """One training, in one of the ways.

    Args:
        folder: Where the ranks write their steps.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abc.abstractmethod
    def training(self) -> contextlib.AbstractContextManager[None]:
        """Run it with two workers, and end it."""

    def steps(self) -> list[tuple[int, int, int, int]]:
        """Every step so far: (time in ns, size, rank, pid)."""
        found = []
        for path in self.folder.glob("steps-*"):
            for line in path.read_text().splitlines():
                words = line.split()
                if len(words) == 5:
                    found.append((int(words[0]), int(words[1]), int(words[2]), int(words[3])))
        return sorted(found)

    def after(self, size: int, since_ns: int, count: int = 1) -> int:
        """Wait for ``count`` steps of rank 0 at a size since a time; when the first of them ended, in ns."""
        deadline = time.monotonic() + _TIMEOUT
        while time.monotonic() < deadline:
            found = [ended for ended, of, rank, _ in self.steps() if of == size and rank == 0 and ended > since_ns]
            if len(found) >= count:
                return found[0]
            self.check()
            time.sleep(0.005)
        raise TimeoutError(f"no {count} steps of {size} workers within {_TIMEOUT:g} s")

    @abc.abstractmethod
    def check(self) -> None:
        """See that the training has not ended.

        Raises:
            RuntimeError: it has.
        """

    def kill(self) -> None:
        """SIGKILL to rank 1."""
        os.kill(next(pid for _, _, rank, pid in reversed(self.steps()) if rank == 1), signal.SIGKILL)

    def say(self, change: str, seconds: float) -> None:
        """Print a figure as it comes: the whole takes minutes, and who ends it early keeps what there is."""
        print(f"  {type(self).__name__}, {change}: {seconds:.3f} s", file=sys.stderr, flush=True)

    def finish(self) -> None:
        """Let the training end by itself."""
        (self.folder / "enough").touch()

    def importing(self) -> float:
        """What the slowest of the processes that were started last took to import TensorFlow, in seconds."""
        found = sorted(
            (path.stat().st_mtime_ns, float(path.read_text()))
            for path in self.folder.glob("import-*")
            if path.stat().st_size
        )
        return max(seconds for _, seconds in found[-2:])


class Elastic(Run):
    """A training whose membership changes."""

    @abc.abstractmethod
    def grow(self) -> None:
        """Ask for a third worker."""

    @abc.abstractmethod
    def shrink(self) -> None:
        """Let one that is not rank 0 leave."""

    def measure(self, *, only_growth: bool = False) -> Numbers:
        """Seconds for each change."""
        with self.training():
            self.after(2, 0, _SETTLED)
            numbers = {}
            changes: tuple[tuple[str, Callable[[], None], int], ...] = (
                ("join", self.grow, 3),
                ("kill", self.kill, 2),
                ("leave", self.shrink, 1),
            )
            for name, act, size in changes[: 1 if only_growth else None]:
                began = time.time_ns()
                act()
                numbers[name] = (self.after(size, began) - began) / 1e9
                self.say(name, numbers[name])
                self.after(size, began, _SETTLED)
            self.finish()
        return numbers


class Job:
    """A job under ``fit()``, which waits in a thread: so the job's processes count as the benchmark's own.

    Args:
        estimator: Its estimator.
    """

    def __init__(self, estimator: TensorFlow) -> None:
        self._estimator = estimator
        self._thread = threading.Thread(target=self._fit, name="fit")
        self._ended: BaseException | None = None

    def _fit(self) -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", PreflightWarning)
                self._estimator.fit(logs=False)
        except BaseException as problem:  # noqa: BLE001 - raised where it is waited for
            self._ended = problem

    def check(self) -> None:
        """See :meth:`Run.check`."""
        if not self._thread.is_alive():
            raise RuntimeError("the job has ended too early") from self._ended

    @contextlib.contextmanager
    def running(self) -> Iterator[TrainingJob]:
        """Start it, and wait for its end; on an error stop it."""
        self._thread.start()
        while (job := self._estimator.latest_training_job) is None:
            self.check()
            time.sleep(0.005)
        try:
            yield job
            self._thread.join(_TIMEOUT)
        finally:
            if self._thread.is_alive():
                job.stop(grace=0)
            self._thread.join()
            harness.wait_for_exit(job.record.read_status()["Fleetfit"]["supervisor_pid"])
            _ = job.status  # asking also reaps the supervisor
        if self._ended is not None and isinstance(self._ended, TrainingJobError):
            raise self._ended


class ElasticFit(Elastic):
    """Under ``fit()``.

    Args:
        folder: See :class:`Run`.
        spares: Spare hosts.
        fork: ``FLEETFIT_FORK``.
    """

    def __init__(self, folder: Path, *, spares: int = 0, fork: str = "1") -> None:
        super().__init__(folder)
        self._spares = spares
        # What was killed does not come back while the benchmark looks.
        strategy = ElasticHorovod(max_hosts=3, spares=spares, cooldown=(600.0, 600.0))
        self._fit = Job(estimator(folder, strategy, hosts=2, fork=fork))

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """See :class:`Run`."""
        with self._fit.running() as self._job:
            if self._spares:
                self.after(2, 0, _SETTLED)
                ready = "worker_ready"
                deadline = time.monotonic() + _TIMEOUT
                while sum(1 for _ in self._job.record.events(ready)) < 2 + self._spares and time.monotonic() < deadline:
                    time.sleep(0.05)
            yield

    def check(self) -> None:
        """See :class:`Run`."""
        self._fit.check()

    def grow(self) -> None:
        """See :class:`Elastic`."""
        self._job.add_hosts(1)

    def shrink(self) -> None:
        """See :class:`Elastic`."""
        self._job.remove_host(self._job.hosts[-1])


def estimator(
    folder: Path, distribution: ElasticHorovod | MPI, *, hosts: int, fork: str = "1", **options: Any
) -> TensorFlow:
    """The same script for all; ``fork`` is ``FLEETFIT_FORK``."""
    return TensorFlow(
        entry_point=_SCRIPT,
        source_dir=str(_SCRIPTS),
        instance_count=hosts,
        instance_type="local_process",
        model_dir=False,
        distribution=distribution,
        environment={
            "STEPS_FOLDER": str(folder),
            "STEPS_ELASTIC": str(int(isinstance(distribution, ElasticHorovod))),
            "FLEETFIT_FORK": fork,
        },
        **options,
    )


class ByHorovodrun(Run):
    """Under horovodrun."""

    _process: subprocess.Popen[bytes]

    def start(self, *options: str, elastic: bool) -> None:
        """Start the script."""
        binaries = Path(sys.executable).parent
        with (self.folder / "horovodrun.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable, str(binaries / "horovodrun"), "-np", "2", "--network-interfaces", "lo", *options,
                    sys.executable, str(_SCRIPTS / _SCRIPT),
                ],
                env={
                    **os.environ,
                    "STEPS_FOLDER": str(self.folder),
                    "STEPS_ELASTIC": str(int(elastic)),
                    "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def check(self) -> None:
        """See :class:`Run`."""
        if self._process.poll() is not None:
            log = (self.folder / "horovodrun.log").read_text(errors="replace")
            raise RuntimeError(f"horovodrun has ended with {self._process.returncode}:\n{log[-3000:]}")

    @contextlib.contextmanager
    def _ending(self) -> Iterator[None]:
        try:
            yield
            self._process.wait(_TIMEOUT)
        finally:
            if self._process.poll() is None:
                self._process.send_signal(signal.SIGINT)  # it ends its workers, whose sessions are their own
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(10)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


class ElasticHorovodrun(ByHorovodrun, Elastic):
    """Under horovodrun, with a discovery script.

    Args:
        folder: See :class:`Run`.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._names = ["localhost", "127.0.0.1", socket.gethostname()]
        self._hosts = folder / "hosts"
        self._say(2)

    def _say(self, count: int) -> None:
        new = self._hosts.with_suffix(".new")
        new.write_text("".join(f"{name}:1\n" for name in self._names[:count]))
        new.replace(self._hosts)

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """See :class:`Run`."""
        script = self.folder / "discover.sh"
        script.write_text(f"#!/bin/sh\ncat {self._hosts}\n")
        script.chmod(0o755)
        self.start("--min-np", "1", "--max-np", "3", "--host-discovery-script", str(script), elastic=True)
        with self._ending():
            yield

    def grow(self) -> None:
        """See :class:`Elastic`."""
        self._say(3)

    def shrink(self) -> None:
        """See :class:`Elastic`."""
        self._say(2)


class Gang(Run):
    """A training that is not elastic, and is started again when a rank is killed."""

    def again(self) -> None:
        """See to it that it is started again."""

    def measure(self) -> Numbers:
        """Seconds from the kill to the first step of the next start, with and without TensorFlow's import."""
        with self.training():
            self.after(2, 0, _SETTLED)
            began = time.time_ns()
            self.kill()
            self.again()
            restart = (self._first_of_others(began) - began) / 1e9
            self.finish()
        numbers = {"restart": restart, "restart without import": restart - self.importing()}
        for name, seconds in numbers.items():
            self.say(name, seconds)
        return numbers

    def _first_of_others(self, since_ns: int) -> int:
        before = {pid for _, _, _, pid in self.steps()}
        deadline = time.monotonic() + _TIMEOUT
        while time.monotonic() < deadline:
            for ended, _, rank, pid in self.steps():
                if rank == 0 and pid not in before and ended > since_ns:
                    return ended
            self.check()
            time.sleep(0.005)
        raise TimeoutError(f"no new start made a step within {_TIMEOUT:g} s")


class GangFit(Gang):
    """Under ``fit()``, which starts it again.

    Args:
        folder: See :class:`Run`.
        hosts: How many hosts the two ranks have.
        fork: ``FLEETFIT_FORK``.
    """

    def __init__(self, folder: Path, *, hosts: int = 1, fork: str = "1") -> None:
        super().__init__(folder)
        options = RunOptions(failure_policy=FailurePolicy(max_failures=1, cooldown=(0.0, 0.0)))
        ranks = MPI(processes_per_host=2 // hosts)
        self._fit = Job(estimator(folder, ranks, hosts=hosts, fork=fork, run_options=options))

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """See :class:`Run`."""
        with self._fit.running():
            yield

    def check(self) -> None:
        """See :class:`Run`."""
        self._fit.check()


class GangHorovodrun(Gang, ByHorovodrun):
    """Under horovodrun, started again as soon as it has ended."""

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """See :class:`Run`."""
        self.start("--gloo", elastic=False)
        with self._ending():
            yield

    def again(self) -> None:
        """See :class:`Gang`."""
        self._process.wait(_TIMEOUT)
        self.start("--gloo", elastic=False)


#: What is timed -> how it is told, the bar for ``fit()``.
_CHANGES = {
    "kill": ("SIGKILL of a worker to the next step of the others", Bar(limit=1.0)),
    "leave": ("a host leaves: request to the first step without it", Bar(limit=0.5)),
    "join": ("a host joins: request to the first step with it", None),
    "restart": ("SIGKILL of a rank of a gang to the first step of its next start", None),
    "restart without import": ("the same, less the import of TensorFlow", Bar(limit=2.0)),
}
_OURS, _SPARE, _THEIRS = "fit()", "fit(), with a spare", "horovodrun"
_GANG = {_OURS: "gang, fit()", _THEIRS: "gang, horovodrun"}


def rows_of(rounds: Mapping[str, Sequence[Numbers]]) -> list[Row]:
    """The lines of the table. Pure."""
    rows = []
    for name, (what, bar) in _CHANGES.items():
        for way in (_OURS, _SPARE, _THEIRS):
            key = _GANG.get(way, way) if name.startswith("restart") else way
            values = [numbers[name] for numbers in rounds[key] if name in numbers]
            if values:
                limit = Bar(limit=2.0) if way == _SPARE else None if way == _THEIRS else bar
                rows.append(Row(what=f"{what}: {way}", estimate=median_with_interval(values), unit="s", bar=limit))
    ratios = [ours["join"] / theirs["join"] for ours, theirs in zip(rounds[_OURS], rounds[_THEIRS], strict=True)]
    estimate = median_with_interval(ratios)
    rows.append(Row(what=f"a host joins: {_OURS} ÷ {_THEIRS}", estimate=estimate, unit="", bar=Bar(limit=1.0)))
    return rows


def run(options: argparse.Namespace) -> None:
    """Measure the changes."""

    def of(make: Callable[[Path], Run], **how: Any) -> Callable[[], Numbers]:
        def once() -> Numbers:
            with tempfile.TemporaryDirectory(prefix="elastic-") as folder:
                return make(Path(folder)).measure(**how)  # type: ignore[attr-defined, no-any-return]

        return once

    ways = {
        _OURS: of(ElasticFit),
        _SPARE: of(lambda folder: ElasticFit(folder, spares=1), only_growth=True),
        _THEIRS: of(ElasticHorovodrun),
        _GANG[_OURS]: of(GangFit),
        _GANG[_THEIRS]: of(GangHorovodrun),
    }
    quiet = Quiet(options.patience)
    with harness.own_home():
        rounds = harness.alternate(options.alternations or _ROUNDS, ways, quiet, warm_up=0)
    harness.record("elastic", rows_of(rounds), {"seconds": rounds}, quiet, dry=options.dry)
