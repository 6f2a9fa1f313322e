"""Which of the tests' processes runs what, and when.

Tests of one engine run in one process, which starts it once. Those that train with TensorFlow or PyTorch use two
cores, in containers as well: as many of these run at once as there are pairs of cores, and the others fill up. Training
tests that mostly wait fill up too, and so do the documents' tests, which wait for the commands that they show.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

#: So many of this user's tests that use two cores run at once on this machine, whichever checkout they are of.
PLACES = max(1, len(os.sched_getaffinity(0)) // 2)
_LARGE = re.compile(
    r"tests/(training|soak)/"
    r"|integration/containers/test_(elastic|endpoint|notebook)\.py"
    r"|integration/containers/test_jobs\.py::test_(the_same_script_trains|four_ranks_of_horovod)"
)
#: Those that train, but use less than half a core.
_WAITING = re.compile(r"training/(checkpoint/test_(keras|kills)|cluster/test_elastic(_members)?)\.py")
#: Those of one file, and so of one process, that take minutes.
_LONG = re.compile(r"integration/docs/")
#: What starts an engine, by the test's file or the place that is its parameter; the first that fits counts.
_ENGINES = {
    "ray": re.compile(r"/test_(elastic_)?ray(_dispatcher|_tune)?\.py|\[ray\b"),
    "machines": re.compile(
        r"/test_(slurm|ssh|elastic_ssh|machines|machine_faults|dispatcher)\.py|\[(machines|ssh|slurm)\b"
    ),
    "ec2": re.compile(r"/test_(elastic_)?ec2\.py|/test_spot_fleet\.py|/backends/ec2/"),
    "spark": re.compile(r"/test_(elastic_)?spark\.py|\[spark\b"),
    "s3": re.compile(r"integration/data/"),
    "endpoint": re.compile(r"integration/service/"),
    "containers": re.compile(r"integration/containers/"),
}


def is_large(test: str) -> bool:
    """Return whether a test uses two cores."""
    return _LARGE.search(test) is not None and _WAITING.search(test) is None


def group(test: str, places: int = PLACES) -> str:
    """Return the name of the tests that run in one process with a test, by its node ID."""
    file = test.partition("::")[0]
    return _engine(test) or (f"large {zlib.crc32(file.encode()) % places}" if is_large(test) else file)


def _engine(test: str) -> str | None:
    """Return which engine a test needs."""
    return next((engine for engine, sign in _ENGINES.items() if sign.search(test)), None)


def ends_engine(test: str, following: str) -> bool:
    """Return whether a test was the last of its engine: one process gets all of these, one after the other.

    One that runs all tests itself gets them in another order, in which the same engine may be needed again.
    """
    own = _engine(test)
    return "PYTEST_XDIST_WORKER" in os.environ and own is not None and _engine(following) != own


def order(test: str) -> int:
    """Return when a test runs: what takes long is not left for the end, where the unit tests fill up.

    Those of an engine that use two cores are its last ones, as they have to wait for others that do.
    """
    if _engine(test) is not None:
        return 2 if is_large(test) else 1
    if is_large(test):
        return 0
    if _WAITING.search(test) or _LONG.search(test):
        return 1
    return 4 if "tests/unit/" in test else 3


class Scheduler(LoadScopeScheduling):
    """Hands out whole groups, in the order of their first tests."""

    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)

    def remove_node(self, node: Any) -> str | None:
        """Give what a process has left to others, but for the test that it died of: that would kill each of them."""
        units = self.assigned_work.get(node, {}).values()
        pending = ((unit, test) for unit in units for test, ended in unit.items() if not ended)
        unit, killer = next(pending, (None, None))
        if unit is None:
            return super().remove_node(node)
        unit[killer] = True
        super().remove_node(node)
        return killer


#: The descriptors of this process's place. One that it forks, and that outlives its test, must not hold it.
_files: list[int] = []
os.register_at_fork(after_in_child=lambda: [os.close(fd) for fd in _files])


@contextlib.contextmanager
def turn() -> Iterator[None]:
    """Hold one of the places for tests that use two cores; wait until there is one."""
    with contextlib.ExitStack() as stack:
        paths = [f"/tmp/fleetfit-tests-{os.getuid()}-{number}.lock" for number in range(PLACES)]
        files = [stack.enter_context(open(path, "w")) for path in paths]
        _files[:] = [file.fileno() for file in files]
        stack.callback(_files.clear)
        for file in files:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
        else:
            fcntl.flock(files[os.getpid() % PLACES], fcntl.LOCK_EX)
        yield
