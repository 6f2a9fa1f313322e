"""Private folders for sockets and session files, and one for the locks on ports."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

PREFIX = "fleetfit-"
#: A job's folder, as ``mkdtemp`` names it.
NAME = re.compile(re.escape(PREFIX) + "[a-z0-9_]{8}")
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
    return Path(tempfile.mkdtemp(prefix=PREFIX, dir=root()))


def unmade() -> Path:
    """Return the path of one that is not there yet: who needs it makes it, for this user only."""
    return Path(root()) / f"{PREFIX}{os.urandom(4).hex()}"


def of_importers(whose: str) -> Path:
    """Return the folder of the importers that are kept for a user's jobs; see :mod:`container.system.importers`.

    Args:
        whose: A digest of the home's path, of eight characters, or the folder's own path.
    """
    return Path(whose) if os.path.isabs(whose) else Path(root()) / f"{PREFIX}kept-{os.getuid()}-{whose}"


def of_ports() -> Path:
    """Return the folder where this user's jobs lock their ports; all of them share it, and it stays when they end."""
    return Path(tempfile.gettempdir()) / f"{PREFIX}ports-{os.getuid()}"
