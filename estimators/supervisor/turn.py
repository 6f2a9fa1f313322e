"""A job's wait for its turn in a queue of its machine."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from container.system.asyncio_loop import AsyncioLoop
from container.system.loop import Timer
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


class Turn:
    """Waits until the queue has room for a job, and keeps its place there until the job is over.

    Args:
        loop: The loop that drives it.
        record: The job's record.
        job: The job.
        options: Its options, with a queue.
        waits: Called with a text when the job waits, and again when its place has changed.
        comes: Called when its turn has come.
        yields: Called when it is to make room for a more urgent one; returns whether it does, or is asked again.

    Attributes:
        has_come: Whether it is the job's turn.
    """

    def __init__(
        self,
        loop: AsyncioLoop,
        record: JobRecord,
        job: TrainingJobSpec,
        options: RunOptions,
        waits: Callable[[str], None],
        comes: Callable[[], None],
        yields: Callable[[], bool],
    ) -> None:
        assert options.queue is not None
        self._loop = loop
        self._waits = waits
        self._comes = comes
        self._yields = yields
        self._preempted = False
        self.has_come = False
        self._machine = machine()
        self._queue = Queue(options.queue, record.home)
        self._entry = Entry(
            job=record.name,
            priority=options.priority,
            since=time.time(),
            needs=needs_of(job, options),
            preemptible=options.preemptible,
        )
        self._said = ""
        self._timer: Timer | None = None

    def begin(self) -> None:
        """Enter the queue.

        Raises:
            RecordError: it cannot be written.
        """
        self._queue.enter(self._entry)
        self._look()

    def again(self) -> None:
        """Enter the queue once more, if the last attempt has made room.

        Raises:
            RecordError: it cannot be written.
        """
        if self._preempted:
            self._preempted, self.has_come, self._said = False, False, ""
            self.begin()

    def end(self) -> None:
        """Leave the queue: the job is over."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._queue.leave(self._entry.job)

    def _look(self) -> None:
        self._timer = None
        taken = False
        with contextlib.suppress(RecordError):  # a full disk, say: the next look may be luckier
            taken = self._queue.take_turn(self._entry, self._machine)
        if taken:
            self.has_come = True
            if self._entry.preemptible:
                self._timer = self._loop.call_later(_WATCHING_S, self._watch)
            self._comes()
            return
        entries = self._queue.entries()
        waiting = [entry.job for entry in order(entries)]
        place = waiting.index(self._entry.job) + 1 if self._entry.job in waiting else len(waiting) + 1
        running = len(entries) - len(waiting)
        busy = "1 job is running" if running == 1 else f"{running} jobs are running"
        text = (
            f"Waiting in the queue {self._queue.name!r}, {place} of {max(place, len(waiting))}: the job needs "
            f"{self._entry.needs}, and {busy}"
        )
        if text != self._said:
            self._said = text
            self._waits(text)
        self._timer = self._loop.call_later(min(_SELDOM_S, _PACE_S * place), self._look)

    def _watch(self) -> None:
        """See whether a more urgent one waits for this one's place."""
        self._timer = None
        if makes_room(self._queue.entries(), self._entry.job, self._machine):
            self._preempted = self._yields()
        if not self._preempted:
            self._timer = self._loop.call_later(_WATCHING_S, self._watch)


def needs_of(job: TrainingJobSpec, options: RunOptions) -> Resources:
    """Return what a job needs: a core for each rank and every visible GPU, unless it says otherwise.

    Args:
        job: The job.
        options: Its options; ``needs`` replaces what follows from the job.
    """
    per_host = job.strategy.ranks_per_host if job.strategy is not None else 1
    found = {"cores": float(job.instance_count * per_host), "gpus": float(len(gpus())), "memory_gb": 0.0}
    return Resources(**{**found, **options.needs})
