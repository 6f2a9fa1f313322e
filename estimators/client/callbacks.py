"""``fit(callbacks=[…])``: the caller's own code, called while it waits for a job.

Callbacks run in the process and thread that waits, between the log's lines, so they may plot, print or stop the job;
they see what a job reports, not the training process itself. An exception of theirs ends a job that is tied to the
caller (the script has ``interrupt_grace`` to save) and comes out of ``fit()``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from container.contract.names import shown
from container.contract.wire import Event
from estimators.job.errors import ConfigurationError

if TYPE_CHECKING:
    from estimators.client.progress import JobProgress
    from estimators.client.training_job import TrainingJob
    from estimators.records.record import JobRecord

#: So many events are held in memory while callbacks are told of them.
_AT_ONCE = 2000


@dataclasses.dataclass(frozen=True)
class Metric:
    """A value that a rank reported, or that a regular expression found in a process's output.

    Attributes:
        name: The metric's name.
        value: The value.
        rank: The rank; None if the process is not a rank.
        host: The host.
        time: Seconds since the epoch.
        attempt: The number of the job's attempt, from 0.
    """

    name: str
    value: float
    rank: int | None
    host: str
    time: float
    attempt: int


class Callback:
    """Base of the callbacks that ``fit()`` and ``wait()`` call. Override any method; by default, each does nothing."""

    def on_metric(self, job: TrainingJob, metric: Metric) -> None:
        """Called for each new value of a metric."""

    def on_event(self, job: TrainingJob, event: Event) -> None:
        """Called for each event in the job's record: phases, processes, checkpoints, and also metrics."""

    def on_end(self, job: TrainingJob) -> None:
        """Called when the job has ended, in any status, before ``fit()`` returns or raises."""


#: The argument ``callbacks``.
Callbacks = Callback | Iterable[Callback] | None


def check_callbacks(value: Any) -> tuple[Callback, ...]:
    """Read the ``callbacks`` argument: None, a callback, or several.

    Raises:
        ConfigurationError: something else.
    """
    if value is None:
        return ()
    items = [value] if isinstance(value, Callback) else value
    if isinstance(items, str) or not isinstance(items, Iterable):
        raise ConfigurationError(f"callbacks must be a Callback or a list of them, got {shown(value)}.")
    callbacks = tuple(items)
    for item in callbacks:
        if isinstance(item, type) and issubclass(item, Callback):
            raise ConfigurationError(f"callbacks: give an instance, {item.__name__}(), not the class.")
        if not isinstance(item, Callback):
            raise ConfigurationError(
                f"callbacks: {shown(item)} is not an estimators.callbacks.Callback; derive from it and override "
                "on_metric, on_event or on_end."
            )
    return callbacks


class EventFeed:
    """Calls callbacks with what is new on a job's record.

    Args:
        job: The job.
        callbacks: Whom to tell.
        progress: What follows how far the job is.
        before: Called before callbacks are: they may print.
    """

    def __init__(
        self,
        job: TrainingJob,
        callbacks: tuple[Callback, ...],
        progress: JobProgress | None = None,
        before: Callable[[], None] = lambda: None,
    ) -> None:
        self._job = job
        self._callbacks = callbacks
        self._progress = progress
        self._before = before
        self._tail = EventTail(job.record)

    def poll(self) -> bool:
        """Tell what is new; returns whether there was anything."""
        if not self._callbacks and self._progress is None:
            return False
        told = False
        while events := self._tail.read():
            if not self._callbacks and self._progress is not None:
                self._progress.take(events)
                return True  # the rest is for the next call: nobody waits for it
            told = True
            if self._progress is not None:
                self._progress.take(events)
            if self._callbacks:
                self._tell(events)
        return told

    def _tell(self, events: list[Event]) -> None:
        self._before()
        for event in events:
            metric = metric_of(event)
            for callback in self._callbacks:
                callback.on_event(self._job, event)
                if metric is not None:
                    callback.on_metric(self._job, metric)

    def end(self) -> None:
        """Tell the last news, and that the job is over."""
        self.poll()
        self._before()
        for callback in self._callbacks:
            callback.on_end(self._job)


class EventTail:
    """Reads ``events.jsonl`` on from where it was.

    Args:
        record: The job's record.
        offset: Where to begin, in bytes.

    Attributes:
        offset: Where the next call goes on.
    """

    def __init__(self, record: JobRecord, offset: int = 0) -> None:
        self._path = record.events_file
        self.offset = offset

    def read(self) -> list[Event]:
        """Events that have been added since the last call: not all at once, so call it until there are none."""
        events: list[Event] = []
        with contextlib.suppress(FileNotFoundError), self._path.open("rb") as file:
            file.seek(self.offset)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self.offset += len(line)
                with contextlib.suppress(ValueError, TypeError):  # a line that a full disk has torn
                    events.append(Event.from_dict(json.loads(line)))
                    if len(events) >= _AT_ONCE:
                        break
        return events


def metric_of(event: Event) -> Metric | None:
    """Return the metric that an event is; None if it is something else."""
    name, value = event.data.get("name"), event.data.get("value")
    if event.kind != "metric" or not isinstance(name, str) or not isinstance(value, int | float):
        return None
    return Metric(name, float(value), event.rank, event.host, event.time_ns / 1e9, event.attempt)
