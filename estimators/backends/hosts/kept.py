"""What is kept between jobs on a machine: a process that has imported what their scripts import.

``keep_alive_period_in_seconds`` has the machine's importer (:mod:`container.toolkit.importer`) wait for the next job of
the same home. It holds nothing of a job but modules that are installed: the next one's hosts, processes, files and
environment are made anew.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import time
from pathlib import Path

from container.contract import variables
from container.system import folders, importers
from estimators.backends.base import Leftover
from estimators.job.fleets import capabilities
from estimators.job.request import TrainingJobSpec

#: How long something is kept where a job does not say it, but whoever starts it wants it, in seconds.
SECONDS = 600
#: How long one that is told to end may take, in seconds.
_END_S = 2.0


@dataclasses.dataclass(frozen=True)
class Kept:
    """A process that is kept.

    Attributes:
        pid: Its process.
        packages: What it has imported.
        until: When it ends, in seconds since the epoch; None while a job has it.
        bytes: The memory that it does not share with others.
        place: Its socket.
    """

    pid: int
    packages: tuple[str, ...]
    until: float | None
    bytes: int
    place: Path

    def __str__(self) -> str:
        """Say what it is, for a person."""
        names = ", ".join(dict.fromkeys(name.partition(".")[0] for name in self.packages)) or "nothing yet"
        left = "in use by a job" if self.until is None else f"kept for {max(0, round(self.until - time.time()))} s more"
        return f"process {self.pid}, {self.bytes / 1e6:.0f} MB, {left}; it has imported {names}"


def whose(home: Path) -> str:
    """Return how a home is told from others."""
    import hashlib  # a job's start waits for what is imported

    return hashlib.blake2b(os.fsencode(home.resolve()), digest_size=4).hexdigest()


def for_whom(spec: TrainingJobSpec, home: Path) -> tuple[int, str]:
    """Return for how many seconds what a job imports is kept, and for whose jobs: see :data:`variables.KEPT_FOR`."""
    folder = os.environ.get(variables.KEEP_IMPORTERS)
    if spec.resources.keep_alive_s is None and folder and capabilities(spec.instance_type).keeps_imports:
        return SECONDS, os.path.abspath(folder)
    return spec.resources.keep_alive_s or 0, whose(home)


def find(home: Path) -> list[Kept]:
    """Return what is kept on this machine for jobs of a home, and in the folder that the environment names."""
    shared = os.environ.get(variables.KEEP_IMPORTERS)
    places = [folders.of_importers(whose(home)), *([Path(shared)] if shared else [])]
    return [
        Kept(one.pid, one.packages, one.until, _size(one.pid), one.place)
        for place in places
        for one in importers.noted(place)
    ]


def leftover(one: Kept) -> Leftover:
    """Return what ends it, for ``fleetfit clean``."""
    return KeptLeftover(name=str(one), job="", one=one, kind="kept")


@dataclasses.dataclass(frozen=True, kw_only=True)
class KeptLeftover(Leftover):
    """A process that is kept.

    Attributes:
        one: The process.
    """

    one: Kept

    def remove(self) -> None:
        """End it, and remove what it leaves.

        Raises:
            TimeoutError: it did not end.
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
    """Return a process's proportional share of memory in bytes; 0 where it cannot be told."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    return 0
