"""Define callbacks, and call the user's callbacks while ``fit(callbacks=[…])`` waits for a job.

Callbacks run in the process that called ``fit()``, in the thread that waits. They are called between the lines of the
log. A callback receives the values and events that the job reports, but has no access to the training processes. A
callback may plot, print or stop the job.

If a callback raises an exception, ``fit()`` raises the same exception. If the job is tied to the process, which means
that the job must not continue without the process, the job is stopped. The script then has ``interrupt_grace`` seconds
to save its state.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from container.contract.frozen import dataclass
from container.contract.names import shown
from container.contract.wire import Event
from estimators.job.errors import ConfigurationError

if TYPE_CHECKING:
    from estimators.client.training_job import TrainingJob
    from estimators.client.waiting import JobDisplay
    from estimators.records.record import JobRecord

#: Maximum number of events that are read at once.
_AT_ONCE = 2000


@dataclass(frozen=True)
class Metric:
    """A value that a rank reported, or that a regular expression found in a process's output.

    Attributes:
        name: The metric's name.
        value: The value.
        rank: The rank of the process, or None if the process is not a rank.
        host: The name of the process's host.
        time: The time of the report, in seconds since the epoch.
        attempt: The number of the job's attempt, from 0.
    """

    name: str
    value: float
    rank: int | None
    host: str
    time: float
    attempt: int


class Callback:
    """The base class of the callbacks that ``fit()`` and ``wait()`` call.

    A subclass overrides one or more of the methods. The methods of this class do nothing.
    """

    def on_metric(self, job: TrainingJob, metric: Metric) -> None:
        """Handle a new value of a metric."""

    def on_event(self, job: TrainingJob, event: Event) -> None:
        """Handle an event in the job's record, such as the start of a phase, a checkpoint or a metric."""

    def on_end(self, job: TrainingJob) -> None:
        """Handle the end of the job, with any status. ``fit()`` calls this method before it returns or raises."""


#: The type of the argument ``callbacks``.
Callbacks = Callback | Iterable[Callback] | None


def check_callbacks(value: Any) -> tuple[Callback, ...]:
    """Return the value of the ``callbacks`` argument as a tuple of callbacks.

    The value is None, one callback, or several callbacks.

    Raises:
        ConfigurationError: an item is not a callback.
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
    """A reader of a job's events that passes new events to callbacks.

    Args:
        job: The job.
        callbacks: The callbacks.
        output: The display of the job's logs. Its progress also gets the events. Its status line is removed before the
            callbacks are called, because a callback may print.
        known: The number of events at the beginning of the record that the callbacks do not get. A callback that has
            stopped the job because of a metric must not get this metric again after ``resume()``.
    """

    def __init__(self, job: TrainingJob, callbacks: tuple[Callback, ...], output: JobDisplay, known: int) -> None:
        self._job = job
        self._callbacks = callbacks
        self._output = output
        self._known = known
        self._muted = False
        self._tail = EventTail(job.record)

    def mute(self) -> None:
        """Pass no further events to the callbacks. :meth:`end` still calls their ``on_end``."""
        self._muted = True

    def poll(self) -> bool:
        """Pass new events to the callbacks. Return whether there were new events."""
        progress = self._output.progress
        if not self._callbacks and progress is None:
            return False
        told = False
        while events := self._tail.read():
            told = True
            if progress is not None:
                progress.take(events)
            if not self._callbacks:
                break  # no callback waits for the other events, so leave them to the next call
            if not self._muted:
                self._tell(events)
        return told

    def _tell(self, events: list[Event]) -> None:
        self._output.hide()
        for event in events:
            if self._known > 0:
                self._known -= 1
                continue
            metric = metric_of(event)
            for callback in self._callbacks:
                callback.on_event(self._job, event)
                if metric is not None:
                    callback.on_metric(self._job, metric)

    def end(self) -> None:
        """Pass the last events to the callbacks. Then call ``on_end`` of each callback.

        If a callback raises an exception, ``on_end`` of every callback is still called before the exception is raised.
        """
        with contextlib.ExitStack() as stack:
            for callback in reversed(self._callbacks):
                stack.callback(callback.on_end, self._job)
            self.poll()
            self._output.hide()


class EventTail:
    """A reader of ``events.jsonl`` that continues where the last call stopped.

    Args:
        record: The job's record.
        offset: The position of the first byte to read.

    Attributes:
        offset: The position at which the next call continues, in bytes.
    """

    def __init__(self, record: JobRecord, offset: int = 0) -> None:
        self._path = record.events_file
        self.offset = offset

    def read(self) -> list[Event]:
        """Return the events that were added since the last call, at most 2000. Call again until the list is empty."""
        events: list[Event] = []
        with contextlib.suppress(FileNotFoundError), self._path.open("rb") as file:
            file.seek(self.offset)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self.offset += len(line)
                with contextlib.suppress(ValueError, TypeError):  # an incomplete line, written when the disk was full
                    events.append(Event.from_dict(json.loads(line)))
                    if len(events) >= _AT_ONCE:
                        break
        return events


def metric_of(event: Event) -> Metric | None:
    """Return the value of a metric that an event reports, or None if the event reports no metric."""
    name, value = event.data.get("name"), event.data.get("value")
    if event.kind != "metric" or not isinstance(name, str) or not isinstance(value, int | float):
        return None
    return Metric(name, float(value), event.rank, event.host, event.time_ns / 1e9, event.attempt)
