"""What the supervisor writes down of a running job: its status, its events and metrics, and what its processes say."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from container.contract import wire
from estimators import metrics, ranks
from estimators.errors import RecordError
from estimators.jobs import status as statuses
from estimators.jobs.record import JobRecord
from estimators.jobs.states import SecondaryStatus
from estimators.logs import LogWriter
from estimators.spec import TrainingJobSpec


class Journal:
    """The record of a job as it runs; only its supervisor writes there.

    Args:
        record: The job's record, its lock held.
        spec: The job.
        status: Its status so far, as it is kept (see :mod:`estimators.jobs.status`).
        changed: Called when there is something new to read.
        failed: Called when the record could not be written.

    Attributes:
        status: The job's status; it is on the disk after :meth:`write_status`.
        final_metrics: The last value of each metric.
    """

    def __init__(
        self,
        record: JobRecord,
        spec: TrainingJobSpec,
        status: dict[str, Any],
        *,
        changed: Callable[[], None],
        failed: Callable[[RecordError], None],
    ) -> None:
        self.status = status
        self.final_metrics = metrics.FinalMetrics()
        self._record = record
        self._changed = changed
        self._failed = failed
        self._writer = LogWriter(record, attempt=int(self.own.get("attempt") or 0))
        self._extractor = metrics.MetricExtractor(
            metrics.parse_metric_definitions(
                [{"Name": item.name, "Regex": item.regex} for item in spec.algorithm.metric_definitions]
            ),
            ranks.numbering(spec),
        )
        self._news = False

    # --- the status ---

    @property
    def own(self) -> Mapping[str, Any]:
        """What fleetfit keeps with the status beside SageMaker's fields."""
        found: Mapping[str, Any] = self.status.get(statuses.OWN, {})
        return found

    def keep(self, **values: Any) -> None:
        """Keep values with the status; written with it."""
        self.status = statuses.with_own(self.status, **values)

    def warn(self, message: str) -> None:
        """Keep a warning with the status; written with it."""
        self.status = statuses.with_warning(self.status, message)

    def step(self, secondary: SecondaryStatus, message: str = "") -> None:
        """Take a step of the secondary status."""
        self.status = statuses.transition(self.status, secondary, time.time(), message)

    def write_status(self, *, last: bool = False) -> None:
        """Write the status; at the last time, nothing can follow from a failure."""
        try:
            self._record.write_status(self.status)
        except RecordError as error:
            if last:
                print(f"fleetfit: the last status could not be written: {error}", file=sys.stderr)
            else:
                self._failed(error)
        self._changed()

    # --- events, metrics and the log ---

    @property
    def attempt(self) -> int:
        """The number of the attempt that is written of."""
        return self._writer.attempt

    def start_attempt(self, number: int) -> None:
        """What follows is of another attempt."""
        self._writer.start_attempt(number)

    def number_ranks(self, rank_of: ranks.Numbering) -> None:
        """The attempt has other hosts, and thus other ranks."""
        self._extractor.rank_of = rank_of

    def event(self, kind: str, **data: Any) -> None:
        """Record an event of the supervisor's own."""
        self.events([wire.Event(kind=kind, host="supervisor", attempt=self.attempt, data=data)])

    def events(self, events: Iterable[wire.Event]) -> None:
        """Record events."""
        events = list(events)
        if not events:
            return
        self._news = True
        for event in events:
            self.final_metrics.add(event)
        try:
            self._record.append_events(events)
        except RecordError as error:
            self._failed(error)

    def output(self, piece: wire.Piece, time_ns: int | None = None) -> list[wire.Event]:
        """Write down what a process said; the metrics in it come back as events."""
        now = time.time_ns() if time_ns is None else time_ns
        self._writer.write(piece, now)
        return list(self._extractor.feed(piece, time_ns=now, attempt=self.attempt))

    def say(self, host: str, text: str, time_ns: int | None = None) -> None:
        """Put a line that is not a process' into a host's log."""
        self._writer.write(wire.Piece(host, None, f"{text}\n".encode()), time_ns)
        self._news = True

    def recall(self) -> None:
        """Add up again what an earlier supervisor has recorded of the metrics."""
        for event in self._record.events("metric"):
            self.final_metrics.add(event)

    def flush(self) -> None:
        """Write what is kept back, and tell of what is new."""
        try:
            if self._writer.flush() or self._news:
                self._news = False
                self._changed()
        except RecordError as error:
            self._failed(error)

    def finish(self) -> None:
        """The last metrics, from lines that had no end."""
        self.events(self._extractor.finish(time_ns=time.time_ns(), attempt=self.attempt))

    def close(self) -> None:
        """Close the log."""
        with contextlib.suppress(RecordError):
            self._writer.close()
