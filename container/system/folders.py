"""Create private folders for sockets and session files, and a folder for the locks on ports.

Each folder contains a file that identifies the process that has created the folder. With this file,
:mod:`container.system.unused` finds the folders that remain after jobs were killed. A folder without this file belongs
to another program, whatever the folder's name is.
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
#: Pattern of the name of a job's private folder, which ``mkdtemp`` creates.
NAME = re.compile(re.escape(PREFIX) + "[a-z0-9_]{8}")
#: Pattern of the name of an importers' folder (see :mod:`container.system.importers`). Such a folder does not contain
#: :data:`NOTE`, because it is removed as soon as it is empty. No other program uses such names.
_OF_IMPORTERS = re.compile(re.escape(PREFIX) + r"(imports-[0-9a-f]{8}|kept-\d+-[0-9a-f]{8})")
#: The file that identifies the process that has created a folder, by its pid, start time and PID namespace.
NOTE = ".fleetfit-made-by"
#: Each host of a job has a second folder, in shared memory. Its name begins with the name of the job's private folder.
SHARED_MEMORY = "/dev/shm"

#: mpirun splits its parameters at spaces, and passes paths unquoted to a shell.
_PLAIN = re.compile(r"[A-Za-z0-9._/+-]+")
#: The path of a unix socket has at most 107 bytes (unix(7)); fleetfit's longest socket path is this much longer than
#: the root's path.
_LONGEST = 107 - len("/fleetfit-12345678/algo-10000/host.sock")
_FALLBACK = "/tmp"


def root() -> str:
    """Return the parent of the private folders: ``TMPDIR``, or ``/tmp`` if that path is too long or has special
    characters.
    """
    folder = tempfile.gettempdir()
    return folder if len(folder) <= _LONGEST and _PLAIN.fullmatch(folder) else _FALLBACK


def make() -> Path:
    """Create a private folder that only this user can enter.

    Raises:
        OSError: the folder cannot be created.
    """
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=root()))
    claim(folder)
    return folder


@contextlib.contextmanager
def temporary(what: str, within: str | None = None) -> Iterator[Path]:
    """Create a private folder at the beginning of a ``with`` block, and remove the folder at the end of the block.

    Args:
        what: The middle part of the folder's name, between the common prefix and a random text.
        within: The parent folder. If None, ``TMPDIR``.

    Raises:
        OSError: the folder cannot be created.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{what}-", dir=within))
    try:
        claim(folder)
        yield folder
    finally:
        remove_tree(folder, ignore_errors=True)


def claim(folder: Path) -> None:
    """Record in a folder that this process has created the folder.

    Raises:
        OSError: the file cannot be written.
    """
    text = " ".join((str(os.getpid()), processes.began(os.getpid()), os.readlink("/proc/self/ns/pid")))
    (folder / NOTE).write_text(text, encoding="ascii")


def is_abandoned(folder: Path) -> bool:
    """Return whether a folder was created by a process of fleetfit that has ended.

    A folder of importers always counts as abandoned, because the folder does not name its creator. Other processes may
    still use an abandoned folder.
    """
    if _OF_IMPORTERS.fullmatch(folder.name):
        return True
    try:
        pid, began, namespace = (folder / NOTE).read_text(encoding="ascii").split()
        # From another PID namespace, the folder's users cannot be determined.
        return namespace == os.readlink("/proc/self/ns/pid") and processes.began(int(pid)) != began
    except (OSError, ValueError):
        return False


def remove_if_empty(folder: Path) -> None:
    """Remove a private folder if it contains only the file :data:`NOTE`, which identifies the folder's creator."""
    if names_in(folder) == [NOTE]:
        with contextlib.suppress(OSError):
            (folder / NOTE).unlink()
            folder.rmdir()


def unmade() -> Path:
    """Return a new random path for a folder of importers (:mod:`container.system.importers`).

    The folder is not created. The process that needs the folder creates it with mode 0700.
    """
    return Path(root()) / f"{PREFIX}imports-{os.urandom(4).hex()}"


def of_importers(whose: str) -> Path:
    """Return the folder of the importers that keep running for a user's next jobs. See
    :mod:`container.system.importers`.

    Args:
        whose: An eight-character digest of the path of fleetfit's home folder, or the path of the importers' folder
            itself.
    """
    return Path(whose) if os.path.isabs(whose) else Path(root()) / f"{PREFIX}kept-{os.getuid()}-{whose}"


def of_ports() -> Path:
    """Return the folder that contains the locks on ports of all jobs of this user. The folder is never removed."""
    return Path(tempfile.gettempdir()) / f"{PREFIX}ports-{os.getuid()}"
