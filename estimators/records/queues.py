"""Queues on disk: ``$FLEETFIT_HOME/queues/<queue>/<job>.json``, an entry for each job that waits or runs.

A job's supervisor alone writes its entry. One counts as long as the lock of the job's record is held, so that a
supervisor that was killed keeps nobody waiting. Whose turn it is, supervisors find out under the queue's lock.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from pathlib import Path

from container.system import files, locks
from estimators.job.queueing import Entry, Resources, starts
from estimators.records.private_files import explained
from estimators.records.record import is_job_name, jobs_folder

_QUEUE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")


def machine() -> Resources:
    """Return what this machine has, or the part of it that may be used."""
    from container.system.machine import facts

    known = facts()
    return Resources(cores=known.cores, gpus=len(known.gpus), memory_gb=known.memory_bytes / 1e9)


def queue_names(home: str | Path | None = None) -> list[str]:
    """Return the names of all queues in which there ever was a job, sorted."""
    return [name for name in files.names_in(_folder(home)) if _QUEUE.fullmatch(name)]


class Queue:
    """One queue of a home.

    Args:
        name: Its name.
        home: Instead of ``$FLEETFIT_HOME``.
    """

    def __init__(self, name: str, home: str | Path | None = None) -> None:
        self.name = name
        self.path = _folder(home) / name
        self._jobs = jobs_folder(home)

    def enter(self, entry: Entry) -> None:
        """Wait in it.

        Raises:
            RecordError: it cannot be written.
        """
        with explained(self.path, "write"):
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            files.write_json(self._file(entry.job), dataclasses.asdict(entry))

    def leave(self, job: str) -> None:
        """Wait, or run, no more."""
        with contextlib.suppress(OSError):
            self._file(job).unlink(missing_ok=True)

    def take_turn(self, entry: Entry, has: Resources) -> bool:
        """Return whether it is a job's turn, which is noted then.

        Args:
            entry: The job that waits.
            has: What the machine has.

        Raises:
            RecordError: it cannot be written.
        """
        with explained(self.path, "write"):
            lock = locks.take(self.path / ".lock")
            if lock is None:
                return False  # another one looks at this moment
            try:
                if not starts(self.entries(), entry.job, has):
                    return False
                files.write_json(self._file(entry.job), {**dataclasses.asdict(entry), "running": True})
                self._forget_the_dead()
                return True
            finally:
                os.close(lock)

    def entries(self) -> list[Entry]:
        """Return all that wait or run."""
        found = []
        for job in self._jobs_named():
            if locks.is_held(self._jobs / job / "lock"):
                with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
                    found.append(Entry.from_dict(files.read_json(self._file(job))))  # unless it has just left
        return found

    def _forget_the_dead(self) -> None:
        """Remove the entries that supervisors which were killed have left."""
        for job in self._jobs_named():
            if not locks.is_held(self._jobs / job / "lock"):
                self.leave(job)

    def _jobs_named(self) -> list[str]:
        jobs = [name.removesuffix(".json") for name in files.names_in(self.path) if name.endswith(".json")]
        return [job for job in jobs if is_job_name(job)]

    def _file(self, job: str) -> Path:
        return self.path / f"{job}.json"


def _folder(home: str | Path | None) -> Path:
    return jobs_folder(home).parent / "queues"
