"""The importers of a machine: who they are, as each of them notes it beside its socket.

See :mod:`container.toolkit.importer`. One that is kept waits for the next job of its user and home.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import json
import os
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

from container.system import files


@dataclasses.dataclass(frozen=True)
class KnownImporter:
    """An importer.

    Attributes:
        pid: Its process.
        packages: What it has imported.
        until: When it ends if nobody needs it before, in seconds since the epoch; None while somebody does.
        place: Its socket.
    """

    pid: int
    packages: tuple[str, ...]
    until: float | None
    place: Path


def noted(folder: Path) -> list[KnownImporter]:
    """Return the importers in a folder that run."""
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
    """Return the pids of the importers in a folder that run."""
    return [one.pid for one in noted(folder)]


def runs(pid: int) -> bool:
    """Return whether a process is an importer: another may have its pid by now."""
    try:
        return b"FLEETFIT_IMPORTER=" in Path(f"/proc/{pid}/environ").read_bytes() and os.getpid() != pid
    except OSError:
        return False


def note(place: Path, pid: int, packages: Sequence[str], until: float | None) -> None:
    """Note who an importer is; see :class:`KnownImporter`."""
    files.write_json(_note(place), {"pid": pid, "packages": list(packages), "until": until})


def noted_pid(place: Path) -> int | None:
    """Return the pid of the importer of a socket, as noted."""
    pid: int | None = files.read_json(_note(place)).get("pid")
    return pid


def _note(place: Path) -> Path:
    return place.with_name(f"{place.name}.json")


def forget(place: Path) -> None:
    """Remove the socket of an importer that has ended, and the folder where it was the last; not another's there.

    Args:
        place: The socket.
    """
    with contextlib.suppress(OSError):  # another importer there has removed the folder, or still has it
        folder = os.open(place.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)  # which whoever starts one holds
            if all(one.place != place for one in noted(place.parent)):
                remove(place)
        finally:
            os.close(folder)


def forget_ended(folder: Path) -> None:
    """Remove what importers in a folder have left that were killed together with the toolkits that had started them."""
    running = {one.place for one in noted(folder)}
    for file in folder.glob("*.json"):
        if (place := file.with_suffix("")) not in running:
            forget(place)


def remove(place: Path) -> None:
    """Remove the socket of an importer, and the folder where it was the last."""
    for file in (place, _note(place)):
        file.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # others' are there
        place.parent.rmdir()


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock: one importer is started where several toolkits need it."""
    there = False
    while not there:
        folder.mkdir(mode=0o700, exist_ok=True)
        fd = -1
        with contextlib.suppress(FileNotFoundError):  # the last importer there has just removed it
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


def connect(place: Path) -> socket.socket | None:
    """Connect to the importer of a socket; None where there is none."""
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.connect(str(place))
    except OSError:
        sock.close()
        return None
    return sock
