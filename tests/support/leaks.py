"""What a test leaves behind: processes, open files, mounts, shared memory, and the product's folders."""

from __future__ import annotations

import contextlib
import gc
import os
import sysconfig
import time
from collections.abc import Callable, Collection
from multiprocessing import resource_tracker
from pathlib import Path

from container.system import folders

#: How long what is about to end may take to, in seconds.
_ENDING_S = 10.0
#: Libraries keep some of their own files open, such as fonts.
_LIBRARIES = tuple({os.path.realpath(sysconfig.get_path(name)) for name in ("purelib", "platlib", "stdlib")})
#: Fixtures of several tests, whose clients in this process connect as they need to, and stay connected.
_ENGINES = frozenset(
    {"browser", "cloud", "engine", "executors", "kernel", "raylets", "region", "s3_process", "served", "sm"}
)
#: What fixtures of several tests have opened, which stays open.
_kept: dict[str, str] = {}


def open_files() -> dict[str, str]:
    """Return what this process has open: the target of each descriptor."""
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the listing
            found[fd] = os.readlink(f"/proc/self/fd/{fd}")
    found.pop(str(resource_tracker._resource_tracker._fd), None)  # type: ignore[attr-defined] # one for all children
    return {fd: target for fd, target in found.items() if not target.startswith(_LIBRARIES)}


def jobs_were_killed() -> None:
    """Take note that the test's fixtures have killed jobs: these could not tidy up."""
    Watch.killed = True


def failed() -> None:
    """Take note that the test has failed: its traceback holds what it had open."""
    Watch.failed = True


def keep_open(before: dict[str, str]) -> None:
    """Take what has been opened since for that of several tests."""
    _kept.update(open_files().items() - before.items())


class Watch:
    """Looks at what there is before a test, and then at what it has left.

    Args:
        folder: The test's ``TMPDIR``.
        own: Its other folders.
    """

    #: Whether the test's fixtures have killed jobs.
    killed = False
    #: Whether it has failed.
    failed = False

    def __init__(self, folder: Path, *own: Path) -> None:
        Watch.killed = Watch.failed = False
        self._folder, self._own = folder, own
        self._open = open_files()
        self._there = set(folder.iterdir())
        self._shared = set(os.listdir(folders.SHARED_MEMORY))

    def left(self, fixtures: Collection[str], expected: Collection[str] = ()) -> list[str]:
        """Return a line for each thing that the test has left.

        Args:
            fixtures: The names of its fixtures.
            expected: What it cannot but leave: ``files``, ``folders``, ``processes``.
        """
        looks = {"mounts": self._mounts}
        if not Watch.failed:
            looks["files"] = lambda: self._files(connected=not _ENGINES.isdisjoint(fixtures))
        if "no_process" not in fixtures:
            looks["processes"] = lambda: self._processes(importers="warm" not in fixtures)
        if not Watch.killed:
            looks |= {"folders": self._folders, "shared memory": self._shared_memory}
        return [line for name, look in looks.items() if name not in expected for line in _settled(look)]

    def _files(self, *, connected: bool) -> list[str]:
        if not self._opened(connected=connected):
            return []
        gc.collect()
        return [f"open file {fd}: {target}" for fd, target in self._opened(connected=connected)]

    def _opened(self, *, connected: bool) -> list[tuple[str, str]]:
        found = open_files().items() - self._open.items() - _kept.items()
        return [one for one in found if not (connected and one[1].startswith(("socket:", "anon_inode:")))]

    def _mounts(self) -> list[str]:
        points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        own = tuple(f"{path}/" for path in (self._folder, *self._own))
        return [f"mount: {point}" for point in points if point.startswith(own)]

    def _shared_memory(self) -> list[str]:
        """Names there are ``<folder of the job>-<host>``; other tests' jobs have their folders in other places."""
        new = [name for name in os.listdir(folders.SHARED_MEMORY) if name not in self._shared]
        made = [(name, found) for name in new if (found := folders.NAME.match(name))]
        return [f"shared memory: {name}" for name, found in made if (self._folder / found[0]).exists()]

    def _folders(self) -> list[str]:
        new = set(self._folder.glob(f"{folders.PREFIX}*")) - self._there
        below = {path: sorted(str(one.relative_to(path)) for one in path.rglob("*"))[:9] for path in new}
        return [f"folder: {path.name} ({', '.join(names)})" for path, names in below.items()]

    def _processes(self, *, importers: bool) -> list[str]:
        """Those that have a folder of the test's in their environment; importers may be kept for other tests."""
        signs = [os.fsencode(path) for path in (self._folder, *self._own)]
        own = (os.getpid(), resource_tracker._resource_tracker._pid)  # type: ignore[attr-defined]
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):  # it has ended, or is somebody else's
                environ = Path(f"/proc/{pid}/environ").read_bytes()
                if int(pid) not in own and any(sign in environ for sign in signs):
                    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
                    if importers or "/toolkit/importer/__main__.py " not in words:
                        found.append(f"process {pid}: {words[:300]}")
        return found


def _settled(look: Callable[[], list[str]]) -> list[str]:
    """What is there still when all that is about to end has had its time."""
    end = (begun := time.monotonic()) + _ENDING_S
    while (found := look()) and (now := time.monotonic()) < end:
        time.sleep(max(0.02, 5 * (now - begun)))  # looking must not slow down what ends
        begun = time.monotonic()
    return found
