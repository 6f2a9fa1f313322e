"""Manage the queues in which jobs wait until this machine has free resources (``RunOptions(queue=…)``).

``$FLEETFIT_HOME/queues/<queue>/<job>.json`` is the entry of a job that waits or runs.

Only a job's supervisor writes the job's entry. The supervisor also holds the lock of the job's record. If nobody holds
this lock, the entry is ignored, so that a killed supervisor does not block the queue. To determine which job is next, a
supervisor acquires the lock of the queue.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from pathlib import Path

from container.system import files, locks
from estimators.job.queueing import ComputeResources, QueuedJob, starts
from estimators.records.private_files import explained
from estimators.records.record import is_job_name, jobs_folder

_QUEUE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")


def machine() -> ComputeResources:
    """Return the resources of this machine that this process may use."""
    from container.system.machine import facts

    known = facts()
    return ComputeResources(cores=known.cores, gpus=len(known.gpus), memory_gb=known.memory_bytes / 1e9)


def queue_names(home: str | Path | None = None) -> list[str]:
    """Return the sorted names of all queues to which a job has ever been added."""
    return [name for name in files.names_in(_folder(home)) if _QUEUE.fullmatch(name)]


class JobQueue:
    """One queue of jobs, as a folder below ``$FLEETFIT_HOME``.

    Args:
        name: The queue's name.
        home: The folder to use instead of ``$FLEETFIT_HOME``.
    """

    def __init__(self, name: str, home: str | Path | None = None) -> None:
        self.name = name
        self.path = _folder(home) / name
        self._jobs = jobs_folder(home)

    def enter(self, entry: QueuedJob) -> None:
        """Add a job's entry to the queue.

        Raises:
            RecordError: the queue cannot be written.
        """
        with explained(self.path, "write"):
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            files.write_json(self._file(entry.job), dataclasses.asdict(entry))

    def leave(self, job: str) -> None:
        """Remove a job's entry from the queue. If the queue has no such entry, do nothing."""
        with contextlib.suppress(OSError):
            self._file(job).unlink(missing_ok=True)

    def take_turn(self, entry: QueuedJob, has: ComputeResources) -> bool:
        """Return whether a job may start now. If the job may start, mark the job's entry as running.

        Return False also if another supervisor holds the queue's lock at this moment. If the job's entry has been
        removed, add it again.

        Args:
            entry: The entry of the waiting job.
            has: The machine's resources.

        Raises:
            RecordError: the queue cannot be written.
        """
        if not self._file(entry.job).exists():
            self.enter(entry)
        with explained(self.path, "write"):
            lock = locks.take(self.path / ".lock")
            if lock is None:
                return False  # another supervisor holds the queue's lock at this moment
            try:
                if not starts(self.entries(), entry.job, has):
                    return False
                files.write_json(self._file(entry.job), {**dataclasses.asdict(entry), "running": True})
                for job in self._jobs_named():
                    if not locks.is_held(self._jobs / job / "lock"):
                        self.leave(job)  # its supervisor was killed
                return True
            finally:
                os.close(lock)

    def entries(self) -> list[QueuedJob]:
        """Return the entries of all jobs that wait or run in the queue."""
        found = []
        for job in self._jobs_named():
            if locks.is_held(self._jobs / job / "lock"):
                with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
                    # The job may have left the queue in the meantime.
                    found.append(QueuedJob.from_dict(files.read_json(self._file(job))))
        return found

    def _jobs_named(self) -> list[str]:
        jobs = [name.removesuffix(".json") for name in files.names_in(self.path) if name.endswith(".json")]
        return [job for job in jobs if is_job_name(job)]

    def _file(self, job: str) -> Path:
        return self.path / f"{job}.json"


def _folder(home: str | Path | None) -> Path:
    return jobs_folder(home).parent / "queues"
