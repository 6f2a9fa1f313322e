"""Wait until a job may start, if jobs on this machine queue for the machine's cores, GPUs and memory."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from container.system.machine import gpus
from estimators.job.errors import RecordError
from estimators.job.queueing import ComputeResources, QueuedJob, makes_room, order
from estimators.job.request import RunOptions, TrainingJobSpec
from estimators.records.queues import JobQueue, machine
from estimators.records.record import JobRecord

#: The time between two checks by the first job in the queue, in seconds. For the n-th job, the time is n times as long,
#: but at most ``_SELDOM_S``.
_PACE_S = 0.2
_SELDOM_S = 10.0
#: The time between two checks whether a running job must make room, in seconds.
_WATCHING_S = 1.0


class QueuePlace:
    """A job's entry in a queue, from :meth:`wait` to :meth:`leave`.

    Args:
        record: The job's record.
        job: The job.
        options: The job's options, which must name a queue.
    """

    def __init__(self, record: JobRecord, job: TrainingJobSpec, options: RunOptions) -> None:
        assert options.queue is not None
        self._machine = machine()
        self._queue = JobQueue(options.queue, record.home)
        self._entry = QueuedJob(
            job=record.name,
            priority=options.priority,
            since=time.time(),
            needs=needs_of(job, options),
            preemptible=options.preemptible,
        )

    async def wait(self) -> AsyncIterator[str]:
        """Add the job to the queue, and wait until the job may start.

        Yields:
            A text with the job's position in the queue, whenever the text changes.

        Raises:
            RecordError: the queue cannot be written.
        """
        self._queue.enter(self._entry)
        said = ""
        while not self._takes_turn():
            entries = self._queue.entries()
            waiting = [entry.job for entry in order(entries)]
            place = waiting.index(self._entry.job) + 1 if self._entry.job in waiting else len(waiting) + 1
            running = len(entries) - len(waiting)
            busy = "1 job is running" if running == 1 else f"{running} jobs are running"
            text = (
                f"Waiting in the queue {self._queue.name!r}, {place} of {max(place, len(waiting))}: the job needs "
                f"{self._entry.needs}, and {busy}"
            )
            if text != said:
                said = text
                yield text
            await asyncio.sleep(min(_SELDOM_S, _PACE_S * place))

    def _takes_turn(self) -> bool:
        # For example a full disk, or a removed folder. The next check may succeed.
        with contextlib.suppress(RecordError, FileNotFoundError):
            return self._queue.take_turn(self._entry, self._machine)
        return False

    async def wanted(self) -> None:
        """Wait until a job with a higher priority needs the resources of this running job. If no such job comes, the
        wait does not end.
        """
        while True:
            await asyncio.sleep(_WATCHING_S)
            if self._entry.preemptible and makes_room(self._queue.entries(), self._entry.job, self._machine):
                return

    def leave(self) -> None:
        """Remove the job from the queue. Call the function when the job is over."""
        self._queue.leave(self._entry.job)


def needs_of(job: TrainingJobSpec, options: RunOptions) -> ComputeResources:
    """Return the resources that a job needs: by default, a core for each rank and every visible GPU.

    Args:
        job: The job.
        options: The job's options. The values in ``needs`` override the default values.
    """
    found = {"cores": float(job.size), "gpus": float(len(gpus())), "memory_gb": 0.0}
    return ComputeResources(**{**found, **options.needs})
