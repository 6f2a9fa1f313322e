"""Write the record of a running job: status, events, metrics, and the output of its processes."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from container.contract import wire
from container.contract.texts import map_texts, writable
from estimators.job import metrics
from estimators.job.errors import RecordError
from estimators.job.log_redaction import Mask
from estimators.job.request import TrainingJobSpec
from estimators.records import status as statuses
from estimators.records.logs import LogWriter
from estimators.records.record import JobRecord
from estimators.records.states import SecondaryStatus
from estimators.supervisor.matching import Matching
from estimators.supervisor.noticing import Divergence

if TYPE_CHECKING:
    from estimators.supervisor.supervisor import Supervisor


class Journal:
    """The writer of a running job's record. Only the supervisor uses this class.

    Args:
        supervisor: The supervisor. The journal informs the supervisor of new content, of metrics that are not numbers,
            and of errors in writing the record.
        record: The job's record. The supervisor holds the record's lock.
        spec: The job.
        mask: Removes the job's secrets from a text.
        status: The job's status so far (see :mod:`estimators.records.status`).

    Attributes:
        status: The job's status. :meth:`write_status` writes the status to the disk.
        final_metrics: The last value of each metric.
    """

    def __init__(
        self, supervisor: Supervisor, record: JobRecord, spec: TrainingJobSpec, status: dict[str, Any], *, mask: Mask
    ) -> None:
        self.status = status
        self.final_metrics = metrics.FinalMetrics()
        self._record = record
        self._host = spec.hosts[0]
        self._mask = mask
        self._supervisor = supervisor
        self._flushes = False  # whether a flush is scheduled
        self._divergence = Divergence(self.own)
        self._writer = LogWriter(record, attempt=int(self.own.get("attempt") or 0))
        self._extractor = metrics.MetricExtractor(
            metrics.parse_metric_definitions(
                [{"Name": item.name, "Regex": item.regex} for item in spec.algorithm.metric_definitions]
            ),
            supervisor.rank_of,
        )
        self._matching = Matching(self._extractor.definitions)
        self._found: list[wire.Event] = []
        self._news = False

    # --- the status ---

    @property
    def own(self) -> Mapping[str, Any]:
        """Return the values in the status that fleetfit adds to SageMaker's fields."""
        found: Mapping[str, Any] = self.status.get(statuses.OWN, {})
        return found

    def keep(self, **values: Any) -> None:
        """Store values in the status. :meth:`write_status` writes the values to the disk."""
        self.status = statuses.with_own(self.status, **values)

    def warn(self, message: str) -> None:
        """Store a warning in the status. :meth:`write_status` writes the warning to the disk."""
        self.status = statuses.with_warning(self.status, writable(message))

    def unshared(self, reason: str) -> None:
        """Store in the status why each rank had to import its modules itself.

        :meth:`write_status` writes the reason to the disk.
        """
        self.status = statuses.with_unshared(self.status, reason)

    def step(self, secondary: SecondaryStatus, message: str = "") -> None:
        """Set the secondary status."""
        self.status = statuses.transition(self.status, secondary, time.time(), map_texts(message, self._mask))

    def write_status(self, *, last: bool = False) -> None:
        """Write the status. Pass an error of the record to the supervisor's ``record_failed``.

        Args:
            last: Whether the write is the last write of the job. An error of the last write is only printed.
        """
        try:
            self._record.write_status(map_texts(self.status, self._mask))
        except RecordError as error:
            if last:
                print(f"fleetfit: the last status could not be written: {error}", file=sys.stderr)
            else:
                self._supervisor.record_failed(error)
        self._supervisor.clients.notify()

    # --- events, metrics and the log ---

    @property
    def attempt(self) -> int:
        """Return the number of the current attempt."""
        return self._writer.attempt

    def start_attempt(self, number: int) -> None:
        """Set the number of the current attempt, to which the following output and events belong."""
        self._writer.start_attempt(number)

    def event(self, kind: str, **data: Any) -> None:
        """Record an event of the supervisor."""
        self.events([wire.Event(kind=kind, host="supervisor", attempt=self.attempt, data=data)])

    def events(self, events: Iterable[wire.Event]) -> None:
        """Record events."""
        events = list(events)
        if not events:
            return
        self._news = True
        self._flush_soon()
        for event in events:
            self.final_metrics.add(event)
        events = [
            # Metrics are numbers without secrets, and there may be millions of them.
            event
            if event.kind == "metric"
            else dataclasses.replace(event, data=map_texts(event.data, self._mask.of_tail))
            for event in events
        ]
        try:
            self._record.append_events(events)
        except RecordError as error:
            self._supervisor.record_failed(error)
        for event in events:
            if (text := self._divergence.look(event)) is not None:
                self.keep(diverged=list(self._divergence.noticed))
                self._supervisor.diverged(event, text)

    def output(self, piece: wire.Piece, time_ns: int | None = None) -> None:
        """Write the output of a process into the log, and search the output for metrics."""
        now = time.time_ns() if time_ns is None else time_ns
        self._writer.write(piece, now)
        self._flush_soon()
        line = self._extractor.feed(piece, time_ns=now, attempt=self.attempt)
        if line is not None:
            self._search(line)

    def _search(self, line: metrics.Line) -> None:
        """Search a line for metrics. The metrics that are found are recorded by :meth:`flush`."""
        lines = [line]
        if (other := metrics.with_numbers(line)) is not None:
            lines.append(other)
        for one in lines:
            for definition, caught in self._matching.search(one):
                self._found += self._extractor.events(one, definition, caught)
        while self._matching.warnings:
            warning = self._matching.warnings.pop()
            self.warn(warning)
            self.say(self._host, f"warning: {warning}")

    def _record_found(self) -> None:
        found, self._found = self._found, []
        self.events(found)
        for event in found:
            if event.kind == "warning":
                self.warn(event.data["message"])

    def say(self, host: str, text: str, time_ns: int | None = None) -> None:
        """Write a line from fleetfit into a host's log."""
        self._writer.write(wire.Piece(host, None, f"{writable(text)}\n".encode()), time_ns)
        self._news = True
        self._flush_soon()

    def show_progress(self, host: str, text: str) -> None:
        """Write a progress line into a host's log. The next progress line replaces this line."""
        self._writer.write(wire.Piece(host, None, f"{writable(text)}\r".encode()))
        self._news = True
        self._flush_soon()

    def recall(self) -> None:
        """Load the last values of the metrics that an earlier supervisor recorded."""
        for event in self._record.events("metric"):
            self.final_metrics.add(event)

    def _flush_soon(self) -> None:
        """Schedule one flush for everything that is written in this iteration of the loop."""
        if not self._flushes:
            self._flushes = True
            self._supervisor.loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write buffered metrics and log lines, and notify readers that the record has new content."""
        self._record_found()
        self._flushes = False
        try:
            if self._writer.flush() or self._news:
                self._news = False
                self._supervisor.clients.notify()
        except RecordError as error:
            self._supervisor.record_failed(error)

    def finish(self) -> None:
        """Search the remaining output, including lines without a line end, and record the last metrics."""
        for line in self._extractor.finish(time_ns=time.time_ns(), attempt=self.attempt):
            self._search(line)
        self._record_found()

    def unmatched(self) -> list[str]:
        """Return a warning for each metric whose regex matched no line. The warning quotes a similar line of the
        output.
        """
        return self._extractor.unmatched(self.final_metrics.names)

    def close(self) -> None:
        """Record the metrics that were found last, and close the log."""
        self._record_found()
        with contextlib.suppress(RecordError):
            self._writer.flush()
