"""The importers of a machine: who they are, as each of them notes it beside its socket.

See :mod:`container.toolkit.importer`. One that is kept waits for the next job of its user and home.
"""

from __future__ import annotations

import dataclasses
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
