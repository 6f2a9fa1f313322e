"""Private folders for sockets and session files, and one for the locks on ports.

Each holds a note of who made it, by which :mod:`container.system.unused` finds what a killed job has left. A folder
without one is somebody else's, whatever its name.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from container.system import processes
from container.system.files import names_in
from container.system.removing import remove_tree

PREFIX = "fleetfit-"
#: A job's folder, as ``mkdtemp`` names it.
NAME = re.compile(re.escape(PREFIX) + "[a-z0-9_]{8}")
#: The folders of importers have no note, as they go when they are empty. Nobody else names one so.
_OF_IMPORTERS = re.compile(re.escape(PREFIX) + r"(imports-[0-9a-f]{8}|kept-\d+-[0-9a-f]{8})")
#: The note of who made a folder: pid, start and PID namespace of a process.
NOTE = ".fleetfit-made-by"
#: Where each host of a job has one more, whose name begins with that of the job's.
SHARED_MEMORY = "/dev/shm"

#: mpirun splits its parameters at spaces, and hands paths to a shell's reader unquoted.
_PLAIN = re.compile(r"[A-Za-z0-9._/+-]+")
#: The path of a unix socket has at most 107 bytes (unix(7)); the longest of ours is this much longer than the root's.
_LONGEST = 107 - len("/fleetfit-12345678/algo-10000/host.sock")
_FALLBACK = "/tmp"


def root() -> str:
    """Return where private folders are made: ``TMPDIR``, or ``/tmp`` if that path is too long or not plain."""
    folder = tempfile.gettempdir()
    return folder if len(folder) <= _LONGEST and _PLAIN.fullmatch(folder) else _FALLBACK


def make() -> Path:
    """Make one that only this user can enter.

    Raises:
        OSError: it cannot be made.
    """
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=root()))
    claim(folder)
    return folder


@contextlib.contextmanager
def temporary(what: str, within: str | None = None) -> Iterator[Path]:
    """Make one for something that is soon over, and remove it.

    Args:
        what: The rest of its name begins so.
        within: Where it is made; default: ``TMPDIR``.

    Raises:
        OSError: it cannot be made.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{what}-", dir=within))
    try:
        claim(folder)
        yield folder
    finally:
        remove_tree(folder, ignore_errors=True)


def claim(folder: Path) -> None:
    """Note that this process has made a folder.

    Raises:
        OSError: it cannot be written.
    """
    text = " ".join((str(os.getpid()), processes.began(os.getpid()), os.readlink("/proc/self/ns/pid")))
    (folder / NOTE).write_text(text, encoding="ascii")


def is_abandoned(folder: Path) -> bool:
    """Return whether a folder is one of ours, and its maker is gone; others may use it still."""
    if _OF_IMPORTERS.fullmatch(folder.name):
        return True
    try:
        pid, began, namespace = (folder / NOTE).read_text(encoding="ascii").split()
        # In another PID namespace nobody here can say who uses it.
        return namespace == os.readlink("/proc/self/ns/pid") and processes.began(int(pid)) != began
    except (OSError, ValueError):
        return False


def remove_if_empty(folder: Path) -> None:
    """Remove one in which nothing is left but the note; else leave it."""
    if names_in(folder) == [NOTE]:
        with contextlib.suppress(OSError):
            (folder / NOTE).unlink()
            folder.rmdir()


def unmade() -> Path:
    """Return the path of one for importers that is not there yet: who needs it makes it, for this user only."""
    return Path(root()) / f"{PREFIX}imports-{os.urandom(4).hex()}"


def of_importers(whose: str) -> Path:
    """Return the folder of the importers that are kept for a user's jobs; see :mod:`container.system.importers`.

    Args:
        whose: A digest of the home's path, of eight characters, or the folder's own path.
    """
    return Path(whose) if os.path.isabs(whose) else Path(root()) / f"{PREFIX}kept-{os.getuid()}-{whose}"


def of_ports() -> Path:
    """Return the folder where this user's jobs lock their ports; all of them share it, and it stays when they end."""
    return Path(tempfile.gettempdir()) / f"{PREFIX}ports-{os.getuid()}"
