"""List the importers of a machine. Each importer has a file that describes it, beside the importer's socket.

An importer is a process that has imported the packages of a script. Ranks are forked from it, so that they start faster
(see :mod:`container.toolkit.importer`). A kept importer waits for the next job of the same user and fleetfit home.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from container.contract.frozen import dataclass
from container.system import files


@dataclass(frozen=True)
class KnownImporter:
    """The facts about an importer that its file contains.

    Attributes:
        pid: The pid of the importer.
        packages: The packages that the importer has imported.
        until: The time at which the importer exits if no job needs it before, in seconds since the epoch. None while a
            job uses the importer.
        place: The path of the importer's socket.
    """

    pid: int
    packages: tuple[str, ...]
    until: float | None
    place: Path


def noted(folder: Path) -> list[KnownImporter]:
    """Return the running importers whose files are in a folder."""
    found = []
    for file in sorted(folder.glob("*.json")):
        try:
            facts = json.loads(file.read_bytes())
            place = file.with_suffix("")
            one = KnownImporter(int(facts["pid"]), tuple(map(str, facts["packages"])), facts["until"], place)
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if runs(one.pid):
            found.append(one)
    return found


def pids(folder: Path) -> list[int]:
    """Return the pids of the running importers whose files are in a folder."""
    return [one.pid for one in noted(folder)]


def runs(pid: int) -> bool:
    """Return whether a process other than this one is an importer.

    The pid of an importer that has ended may now belong to another process.
    """
    try:
        return b"FLEETFIT_IMPORTER=" in Path(f"/proc/{pid}/environ").read_bytes() and os.getpid() != pid
    except OSError:
        return False


def note(place: Path, pid: int, packages: Sequence[str], until: float | None) -> None:
    """Write the file that describes an importer. See :class:`KnownImporter` for the arguments."""
    files.write_json(_note(place), {"pid": pid, "packages": list(packages), "until": until})


def noted_pid(place: Path) -> int | None:
    """Return the pid of an importer, from the JSON file beside its socket. Return None if this file does not exist.

    Args:
        place: The path of the importer's socket.
    """
    pid: int | None = files.read_json(_note(place)).get("pid")
    return pid


def _note(place: Path) -> Path:
    return place.with_name(f"{place.name}.json")


def forget(place: Path) -> None:
    """Remove the socket and the file of an importer that has ended. Do nothing if the importer is still running.

    The folder is also removed if it is empty afterwards.

    Args:
        place: The path of the importer's socket.
    """
    with contextlib.suppress(OSError):  # another importer has removed the folder, or still uses it
        folder = os.open(place.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)  # a process that starts an importer holds this lock
            if all(one.place != place for one in noted(place.parent)):
                remove(place)
        finally:
            os.close(folder)


def forget_ended(folder: Path) -> None:
    """Remove the files of importers that have ended without removing their files.

    An importer that is killed cannot remove its files.
    """
    running = {one.place for one in noted(folder)}
    for file in folder.glob("*.json"):
        if (place := file.with_suffix("")) not in running:
            forget(place)


def remove(place: Path) -> None:
    """Remove the socket and the file of an importer. Then remove the folder if it is empty."""
    for file in (place, _note(place)):
        file.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # other importers use the folder
        place.parent.rmdir()


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder's lock, so that only one importer is started when the toolkits of several hosts need one.

    A toolkit is the process that starts the ranks of a host. The folder is created if it does not exist.

    Raises:
        PermissionError: the folder belongs to another user, or other users may enter it.
    """
    there = False
    while not there:
        folder.mkdir(mode=0o700, exist_ok=True)
        fd = -1
        with contextlib.suppress(FileNotFoundError):  # the last importer has just removed the folder
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            fcntl.flock(fd, fcntl.LOCK_EX)
            there = os.path.samestat(os.fstat(fd), folder.lstat())
        if not there and fd >= 0:
            os.close(fd)
    try:
        status = os.fstat(fd)
        if status.st_uid != os.getuid() or status.st_mode & 0o077:
            raise PermissionError(errno.EPERM, "the folder must belong to this user and have mode 0700", str(folder))
        yield
    finally:
        os.close(fd)
