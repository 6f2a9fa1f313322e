"""The importers of a machine: who they are, as each of them notes it beside its socket.

See :mod:`container.toolkit.importer`. One that is kept waits for the next job of its user and home.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Noted:
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


def noted(folder: Path) -> list[Noted]:
    """Return the importers in a folder that run."""
    found = []
    for file in sorted(folder.glob("*.json")):
        try:
            facts = json.loads(file.read_bytes())
            place = file.with_suffix("")
            one = Noted(int(facts["pid"]), tuple(map(str, facts["packages"])), facts["until"], place)
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
                for file in (place, place.with_name(f"{place.name}.json")):
                    file.unlink(missing_ok=True)
                place.parent.rmdir()
        finally:
            os.close(folder)
