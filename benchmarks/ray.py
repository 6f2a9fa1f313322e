"""What changes of a Ray cluster cost: ``fit()`` on it, beside Ray Train on the same cluster, in one run, alternating.

Horovod's own executor for Ray is started beside them, with a fixed number of workers: its elastic one refuses a cluster
whose nodes share an address.

The cluster is Ray's own for tests: several raylets on this machine. A node comes, a worker and a node are killed; what
is timed is from the act to the first step of those that go on, at the new size. ``fit()`` trains with Horovod, whose
workers import TensorFlow, and Ray Train's workers write their steps and import nothing: so an import is taken off where
a new worker has to make one. Ray Train looks for new nodes every minute; here it does so every five seconds.

It needs ``pip install 'ray[train]==2.60.*'``.
"""

from __future__ import annotations

import abc
import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import elastic, harness
from benchmarks.harness import Bar, Numbers, Quiet, Row, median_with_interval

_SCRIPTS = harness.HERE / "scripts"
#: A round takes some four minutes, nearly all of it Ray Train's.
_ROUNDS = 2
#: A change that takes longer is stuck, in seconds.
_TIMEOUT = 240.0
#: How often Ray Train looks for new nodes, in seconds; its default is 60.
_LOOKS_S = 5.0
#: What is timed, and the bar of the issue.
_CHANGES = {
    "start": ("fit() to the first step of two hosts, less imports", 3.0),
    "join": ("a node comes, to the first step with it, less imports", 10.0),
    "worker": ("SIGKILL of a worker to the next step of the others", 1.0),
    "node": ("SIGKILL of a raylet to the next step of the others", 2.0),
}


class Way(elastic.Run):
    """One training on the cluster.

    Args:
        folder: Where the ranks write their steps.
        cluster: The cluster: a head and a node, each with a slot.
    """

    def __init__(self, folder: Path, cluster: Any) -> None:
        super().__init__(folder)
        self.cluster = cluster

    @abc.abstractmethod
    def imports(self) -> float:
        """What the process that was started last has imported, in seconds."""

    def first_after(self, since_ns: int, size: int) -> float:
        """Seconds to the first step of a size since a time, by any rank that goes on from then on."""
        steps = self.steps()
        before = {pid for ended, _, _, pid in steps if ended <= since_ns} if self.starts_again else set()
        deadline = time.monotonic() + _TIMEOUT
        while time.monotonic() < deadline:
            found = [
                ended for ended, of, _, pid in self.steps() if of == size and ended > since_ns and pid not in before
            ]
            if found:
                return (found[0] - since_ns) / 1e9
            self.check()
            time.sleep(0.005)
        raise TimeoutError(f"no step of {size} workers within {_TIMEOUT:g} s")

    def settle(self, size: int) -> None:
        """Wait for some steps at a size."""
        time.sleep(2.0)
        since = time.time_ns()
        deadline = time.monotonic() + _TIMEOUT
        while not any(of == size and ended > since for ended, of, _, _ in self.steps()):
            assert time.monotonic() < deadline, f"no steps of {size} workers within {_TIMEOUT:g} s"
            self.check()
            time.sleep(0.05)

    def measure(self) -> Numbers:
        """Seconds for each change."""
        numbers: dict[str, float] = {}

        def note(name: str, seconds: float) -> None:
            numbers[name] = seconds
            self.say(name, seconds)

        began = time.time_ns()
        with self.training():
            note("start", self.first_after(began, 2) - self.imports())
            self.settle(2)
            began = time.time_ns()
            node = self.cluster.add(resources={"slot": 1})
            note("join", self.first_after(began, 3) - self.imports())
            self.settle(3)
            pid = next(pid for _, size, rank, pid in reversed(self.steps()) if size == 3 and rank == 1)
            began = time.time_ns()
            os.kill(pid, signal.SIGKILL)
            note("worker", self.first_after(began, self.size_after_a_kill))
            self.settle(3)
            began = time.time_ns()
            self.cluster.kill(node)
            note("node", self.first_after(began, 2))
            self.finish()
        return numbers

    #: At which size a training goes on whose worker was killed, and whether all workers are new ones after a change.
    size_after_a_kill, starts_again = 2, False


class Fit(Way):
    """Under ``fit()``."""

    def check(self) -> None:
        """See :class:`elastic.Run`."""
        self._job.check()

    def imports(self) -> float:
        """See :class:`Way`."""
        return self.importing()

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """See :class:`elastic.Run`."""
        from estimators import ElasticHorovod, RunOptions, TensorFlow

        options = {"address": self.cluster.address, "resources_per_host": {"CPU": 1, "slot": 1}}
        self._job = elastic.Job(
            TensorFlow(
                entry_point="elastic_steps.py",
                source_dir=str(_SCRIPTS),
                instance_count=2,
                instance_type="ray",
                model_dir=False,
                distribution=ElasticHorovod(min_hosts=1, max_hosts=3),
                environment={"STEPS_FOLDER": str(self.folder), "STEPS_ELASTIC": "1"},
                run_options=RunOptions(backend_options=options),
            )
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with self._job.running():
                yield


class Beside(Way):
    """Under something else, which a program of its own starts."""

    _process: subprocess.Popen[bytes]

    def check(self) -> None:
        """See :class:`elastic.Run`."""
        if self._process.poll() is not None:
            log = (self.folder / "log").read_text(errors="replace")
            raise RuntimeError(f"{type(self).__name__} has ended:\n{log[-3000:]}")

    @abc.abstractmethod
    def words(self) -> list[str]:
        """The program, and its arguments."""

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """See :class:`elastic.Run`."""
        script, *arguments = self.words()
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(_SCRIPTS / script), *arguments], stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, env={**os.environ, "RAY_TRAIN_V2_ENABLED": "1"},
            )  # fmt: skip
        try:
            yield
            self._process.wait(_TIMEOUT)
        finally:
            self._process.kill()
            self._process.wait()


class RayTrain(Beside):
    """Under Ray Train, which starts all workers again after each change."""

    size_after_a_kill, starts_again = 3, True

    def imports(self) -> float:
        """Its workers import nothing."""
        return 0.0

    def words(self) -> list[str]:
        """See :class:`Beside`."""
        return ["ray_train_steps.py", self.cluster.address, str(self.folder), "1", "3", str(_LOOKS_S)]


class HorovodRay(Beside):
    """Under ``horovod.ray.RayExecutor``: two workers, once."""

    def imports(self) -> float:
        """See :class:`Way`."""
        return self.importing()

    def words(self) -> list[str]:
        """See :class:`Beside`."""
        return ["horovod_ray_steps.py", self.cluster.address, str(self.folder), str(_SCRIPTS / "elastic_steps.py")]

    def measure(self) -> Numbers:
        """Seconds to the first step."""
        began = time.time_ns()
        with self.training():
            seconds = self.first_after(began, 2) - self.imports()
            self.say("start", seconds)
            self.settle(2)
            self.finish()
        return {"start": seconds}


def run(options: argparse.Namespace) -> None:
    """Measure and record."""
    sys.path.append(str(harness.HERE.parent / "tests" / "support"))
    import ray_cluster

    quiet = Quiet(options.patience, repeats=False)  # Ray's processes are nobody's children
    with harness.own_home():
        cluster = ray_cluster.Cluster(1, slot=1)

        def one(way: type[Way]) -> Numbers:
            with tempfile.TemporaryDirectory(prefix="ray-") as folder:
                return way(Path(folder), cluster).measure()

        try:
            ways = {
                "fit()": lambda: one(Fit),
                "Ray Train": lambda: one(RayTrain),
                "horovod.ray": lambda: one(HorovodRay),
            }
            values = harness.alternate(options.alternations or _ROUNDS, ways, quiet, warm_up=0)
        finally:
            cluster.close()
    rows = []
    for name, (what, limit) in _CHANGES.items():
        for way in ways:
            if name not in values[way][0]:
                continue
            rows.append(
                Row(
                    what=f"{way}: {what}",
                    estimate=median_with_interval([numbers[name] for numbers in values[way]]),
                    unit="s",
                    bar=Bar(limit=limit) if way == "fit()" else None,
                )
            )
    harness.record("ray", rows, {"a cluster of two nodes, and a third": values}, quiet, dry=options.dry)
