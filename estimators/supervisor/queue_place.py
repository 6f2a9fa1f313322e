"""A job's wait for its turn in a queue of its machine."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from container.system.machine import gpus
from estimators.job.errors import RecordError
from estimators.job.queueing import Entry, Resources, makes_room, order
from estimators.job.request import RunOptions, TrainingJobSpec
from estimators.records.queues import Queue, machine
from estimators.records.record import JobRecord

#: Between two looks of the job that is next, in seconds; the one behind it looks half as often, and so on.
_PACE_S = 0.2
_SELDOM_S = 10.0
#: Between two looks of one that runs whether it is to make room, in seconds.
_WATCHING_S = 1.0


class QueuePlace:
    """A job's place in a queue, from :meth:`wait` to :meth:`leave`.

    Args:
        record: The job's record.
        job: The job.
        options: Its options, with a queue.
    """

    def __init__(self, record: JobRecord, job: TrainingJobSpec, options: RunOptions) -> None:
        assert options.queue is not None
        self._machine = machine()
        self._queue = Queue(options.queue, record.home)
        self._entry = Entry(
            job=record.name,
            priority=options.priority,
            since=time.time(),
            needs=needs_of(job, options),
            preemptible=options.preemptible,
        )

    async def wait(self) -> AsyncIterator[str]:
        """Enter the queue, and wait until it has room for the job.

        Yields:
            Which place the job has, as often as that changes.

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
        with contextlib.suppress(RecordError):  # a full disk, say: the next look may be luckier
            return self._queue.take_turn(self._entry, self._machine)
        return False

    async def wanted(self) -> None:
        """Wait until the job is to make room for a more urgent one, which may never be."""
        while True:
            await asyncio.sleep(_WATCHING_S)
            if self._entry.preemptible and makes_room(self._queue.entries(), self._entry.job, self._machine):
                return

    def leave(self) -> None:
        """Leave the queue: the job is over."""
        self._queue.leave(self._entry.job)


def needs_of(job: TrainingJobSpec, options: RunOptions) -> Resources:
    """Return what a job needs: a core for each rank and every visible GPU, unless it says otherwise.

    Args:
        job: The job.
        options: Its options; ``needs`` replaces what follows from the job.
    """
    per_host = job.strategy.ranks_per_host if job.strategy is not None else 1
    found = {"cores": float(job.instance_count * per_host), "gpus": float(len(gpus())), "memory_gb": 0.0}
    return Resources(**{**found, **options.needs})
