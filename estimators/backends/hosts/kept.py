"""Find and terminate kept importers: processes that have imported the scripts' packages and wait for the next job.

A host's importer (:mod:`container.toolkit.importer`) is the process that forks the host's ranks. With
``keep_alive_period_in_seconds``, the importer waits for the next job with the same folder of records. It keeps only the
imported modules of installed packages. Hosts, other processes, files and environment of the next job are created anew.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from container.contract import variables
from container.contract.frozen import dataclass
from container.system import folders, importers
from estimators.backends.base import Leftover
from estimators.job.fleets import capabilities
from estimators.job.request import TrainingJobSpec

#: Seconds for which importers are kept if the variable :data:`variables.KEEP_IMPORTERS` is set, but the job sets no
#: time.
SECONDS = 600
#: Seconds that an importer may take to exit after SIGTERM.
_END_S = 2.0


@dataclass(frozen=True)
class Kept:
    """An importer that is kept.

    Attributes:
        pid: The importer's process id.
        packages: The packages that the importer has imported.
        until: The time when the importer exits, in seconds since the epoch. None while a job uses the importer.
        bytes: The importer's proportional share of memory (PSS), in bytes.
        place: The path of the socket through which jobs reach the importer.
    """

    pid: int
    packages: tuple[str, ...]
    until: float | None
    bytes: int
    place: Path

    def __str__(self) -> str:
        """Return a description for the user."""
        names = ", ".join(dict.fromkeys(name.partition(".")[0] for name in self.packages)) or "nothing yet"
        left = "in use by a job" if self.until is None else f"kept for {max(0, round(self.until - time.time()))} s more"
        return f"process {self.pid}, {self.bytes / 1e6:.0f} MB, {left}; it has imported {names}"


def whose(home: Path) -> str:
    """Return a short hash of the path of a folder of records (home). Jobs with the same hash share kept importers."""
    import hashlib  # imported late to keep a job's start fast

    return hashlib.blake2b(os.fsencode(home.resolve()), digest_size=4).hexdigest()


def for_whom(spec: TrainingJobSpec, home: Path) -> tuple[int, str]:
    """Return how many seconds the job's importer is kept, and a name for the group of jobs that may use the importer.

    The name is the value of the variable :data:`variables.KEPT_FOR`.
    """
    folder = os.environ.get(variables.KEEP_IMPORTERS)
    if spec.resources.keep_alive_s is None and folder and capabilities(spec.instance_type).keeps_imports:
        return SECONDS, os.path.abspath(folder)
    return spec.resources.keep_alive_s or 0, whose(home)


def find(home: Path) -> list[Kept]:
    """Return the importers that are kept on this machine for the jobs of a home, the folder of job records.

    If the variable :data:`variables.KEEP_IMPORTERS` names a folder, also return the importers in this folder.
    """
    shared = os.environ.get(variables.KEEP_IMPORTERS)
    places = [folders.of_importers(whose(home)), *([Path(shared)] if shared else [])]
    return [
        Kept(one.pid, one.packages, one.until, _size(one.pid), one.place)
        for place in places
        for one in importers.noted(place)
    ]


def leftover(one: Kept) -> Leftover:
    """Return a kept importer as a leftover, which ``fleetfit clean`` can remove."""
    return KeptLeftover(name=str(one), job="", one=one, kind="kept")


@dataclass(frozen=True, kw_only=True)
class KeptLeftover(Leftover):
    """A kept importer that ``fleetfit clean`` can remove.

    Attributes:
        one: The importer.
    """

    one: Kept

    def remove(self) -> None:
        """Terminate the importer, and remove its files.

        Raises:
            TimeoutError: the process did not exit.
        """
        pid = self.one.pid
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
            until = time.monotonic() + _END_S
            while importers.runs(pid):
                if time.monotonic() > until:
                    raise TimeoutError(f"process {pid} did not end")
                time.sleep(0.01)
        importers.forget(self.one.place)


def _size(pid: int) -> int:
    """Return a process's proportional share of memory (PSS) in bytes. Return 0 if the value cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    return 0
