"""Convert a host's log to a sequence of events whose order never changes.

CloudWatch's clients continue reading at the number or the time of an event, so they require such an order. A record
stores the output of each process separately. When a line is first returned, its position among the lines of all
processes is fixed. The position is written to ``service/<host>.events`` in the record, with 24 bytes for each event.
Clients therefore miss no event and get no event twice, even if the endpoint is restarted.

A line that is redrawn, such as a progress bar, is printed in many versions, which are called states here. At most one
state per second becomes an event. The last state always becomes an event.
"""

from __future__ import annotations

import collections
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from container.contract import wire
from container.system import files
from estimators.records.logs import LogReader, ProcessLog, Span, read_part, read_spans, size_of
from estimators.records.record import JobRecord

#: CloudWatch's largest event, in bytes.
EVENT_LIMIT = 256 * 1024 - 26

#: An event: time in ms since the epoch, offset in the process's log, length, and number of this log (the line number in
#: ``service/<host>.sources``, from 0).
_EVENT = struct.Struct("<QQIHxx")
#: The shortest time between two events of a redrawn line, in ns.
_REDRAWN_NS = 1_000_000_000
#: Number of hosts whose positions are kept in memory.
_KEPT = 4096
#: Locks for the ``.events`` files. All objects that use the same file use the same lock.
_LOCKS = [threading.Lock() for _ in range(64)]


class LogEvent(NamedTuple):
    """An event of a log stream: a printed line, or a part of a very long line.

    Attributes:
        time_ms: The time in milliseconds since the epoch. The time is never less than that of the previous event.
        text: The printed text, without its line end.
    """

    time_ms: int
    text: str


class _Redrawn:
    """A line that a process redraws. A text that ends with a carriage return is overwritten by the next text.

    Attributes:
        begins: Whether the process prints the carriage return at the beginning of each state. If so, the text before
            the line's end is the last state.
        settled_ns: The time of the last state that became an event, as recorded in the log, in nanoseconds.
        held: The latest state. None if it already is an event.
    """

    def __init__(self) -> None:
        self.begins = False
        self.settled_ns = 0
        self.held: Span | None = None

    def take(self, span: Span, *, empty: bool) -> list[Span]:
        """Add the next state of the line.

        Args:
            span: The position of the state in the log.
            empty: Whether the state has no text.

        Returns:
            The states that become events: this state, or none.
        """
        if empty:
            self.begins = self.begins or not self.settled_ns
            return []
        if self.settled_ns and span[0] - self.settled_ns < _REDRAWN_NS:
            self.held = span
            return []
        self.settled_ns, self.held = span[0], None
        return [span]

    def end(self, *, empty: bool) -> list[Span]:
        """Return the states that become events when the process ends the line: the latest state, or none.

        Args:
            empty: Whether the line ends without further text.
        """
        return [self.held] if self.held is not None and (empty or not self.begins) else []

    def late(self, now_ns: int) -> list[Span]:
        """Return the latest state if no state has followed for a second, for example while a progress bar pauses.

        Args:
            now_ns: The current time, in nanoseconds since the epoch.

        Returns:
            The states that become events: the latest state, or none.
        """
        if self.held is None or now_ns - self.held[0] < _REDRAWN_NS:
            return []
        self.settled_ns, found, self.held = self.held[0], self.held, None
        return [found]


class LogStream:
    """The log of one host.

    Args:
        record: The job's record.
        host: The name of the host.
        labelled: Whether each line begins with a label that names the process.
        clock: A function that returns the current time in nanoseconds since the epoch.
    """

    def __init__(
        self, record: JobRecord, host: str, *, labelled: bool, clock: Callable[[], int] = time.time_ns
    ) -> None:
        self._clock = clock
        self._record = record
        self._host = host
        self._labelled = labelled
        folder = record.path / "service"
        self._index = folder / f"{host}.events"
        self._names = folder / f"{host}.sources"
        self._lock = _LOCKS[hash(str(self._index)) % len(_LOCKS)]
        self._reader: LogReader | None = None
        self._count = 0
        self._last_ms = 0
        self._sources: list[ProcessLog] = []
        self._numbers: dict[ProcessLog, int] = {}
        self._redrawn: dict[ProcessLog, _Redrawn] = {}
        self._finished = False

    # --- fixing the order ---

    def extend(self, *, over: bool) -> int:
        """Add the new output to the sequence of events. The order of the events does not change later.

        Args:
            over: Whether the job has ended. If so, no output will follow.

        Returns:
            The number of all events.
        """
        with self._lock:
            # Load the index if it is not loaded yet, or another object has written to it.
            if self._reader is None or size_of(self._index) != self._count * _EVENT.size:
                self._reader = self._load()
            try:
                while not self._finished:
                    spans = self._reader.locate(final=over)
                    if not spans:
                        now_ns = 1 << 63 if over else self._clock()
                        self._append([span for one in self._redrawn.values() for span in one.late(now_ns)])
                        self._finished = over
                        break
                    self._append(list(self._thinned(spans)))
            except BaseException:
                self._reader = None  # for example a full disk: unwritten events are read again
                raise
            return self._count

    def _load(self) -> LogReader:
        """Load the state of this object from the index. Return a reader for the output that is not in the index yet."""
        names = _records(self._names, b"\n")
        events = _records(self._index, _EVENT.size)
        ends = [0] * names.count(b"\n")
        self._last_ms = 0
        for time_ms, start, length, source in _EVENT.iter_unpack(events):
            ends[source] = max(ends[source], start + length)
            self._last_ms = time_ms
        self._count = len(events) // _EVENT.size
        self._redrawn = {}
        reader = LogReader(self._record, host=self._host)
        known = zip(names.decode().split("\n"), ends, strict=False)
        self._sources = [reader.open(self._host, name, end) for name, end in known]
        self._numbers = {log: number for number, log in enumerate(self._sources)}
        return reader

    def _thinned(self, spans: list[Span]) -> Iterator[Span]:
        """Yield the lines that become events. States that are overwritten within a second are left out."""
        texts = read_spans(spans)
        for span in spans:
            _, log, start, end = span
            first, data = texts[log]
            line = data[start - first : end - first]
            if line.endswith(b"\r"):
                yield from self._redrawn.setdefault(log, _Redrawn()).take(span, empty=not line.strip())
            else:
                redrawn = self._redrawn.pop(log, None)
                if redrawn is not None:
                    yield from redrawn.end(empty=not line.strip())
                yield span

    def _append(self, spans: list[Span]) -> None:
        if not spans:
            return
        self._index.parent.mkdir(mode=0o700, exist_ok=True)
        new = [log for log in dict.fromkeys(log for _, log, _, _ in spans) if log not in self._numbers]
        if new:
            _append(self._names, "".join(f"{log.name}\n" for log in new).encode())
        for log in new:
            self._numbers[log] = len(self._sources)
            self._sources.append(log)
        data = bytearray()
        for span in spans:
            self._last_ms = max(self._last_ms, span[0] // 1_000_000)
            for start, end in _cut(span):
                data += _EVENT.pack(self._last_ms, start, end - start, self._numbers[span[1]])
        _append(self._index, data)
        self._count += len(data) // _EVENT.size

    # --- reading ---

    def read(self, start: int, stop: int, *, most_bytes: int = 1 << 20, last: bool = False) -> list[LogEvent]:
        """Return the events from ``start`` to ``stop - 1``.

        If these events exceed ``most_bytes``, return the first events that fit, or the last ones if ``last`` is True.
        """
        found = list(self._events(start, stop)) if start < stop else []
        spans: list[Span] = []
        total = 0
        for time_ms, offset, length, source in reversed(found) if last else found:
            total += length + 26
            if spans and total > most_bytes:
                break
            spans.append((time_ms, self._sources[source], offset, offset + length))
        spans = spans[::-1] if last else spans
        texts = {log: (self._label(log), *read) for log, read in read_spans(spans).items()}
        events: list[LogEvent] = []
        for time_ms, log, start, end in spans:
            label, first, data = texts[log]
            line = data[start - first : end - first].rstrip(b"\r\n").decode("utf-8", "replace")
            events.append(LogEvent(time_ms, label + line))
        return events

    def _events(self, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
        data = read_part(self._index, start * _EVENT.size, (stop - start) * _EVENT.size)
        return _EVENT.iter_unpack(data[: len(data) // _EVENT.size * _EVENT.size])

    def times(self, start: int, stop: int) -> list[int]:
        """Return the times of events, in milliseconds since the epoch."""
        return [item[0] for item in self._events(start, stop)]

    def first_at(self, time_ms: int, count: int) -> int:
        """Return the number of the first event at or after a time. Return ``count`` if there is no such event."""
        low, high = 0, count
        while low < high:
            middle = (low + high) // 2
            times = self.times(middle, middle + 1)
            if times and times[0] < time_ms:
                low = middle + 1
            else:
                high = middle
        return low

    def _label(self, log: ProcessLog) -> str:
        return f"{wire.prefix(log.host, log.process)} " if self._labelled else ""


class Streams:
    """The log streams of all jobs. The positions of recently used streams stay in memory."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: collections.OrderedDict[tuple[str, int], LogStream] = collections.OrderedDict()

    def get(self, record: JobRecord, host: str, *, labelled: bool) -> LogStream:
        """Return the stream of a host. The same object is returned for the same record."""
        key = (str(record.host_dir(host)), record.path.stat().st_ino)
        with self._lock:
            stream = self._kept.get(key)
            if stream is None:
                stream = self._kept[key] = LogStream(record, host, labelled=labelled)
                if len(self._kept) > _KEPT:
                    self._kept.popitem(last=False)
            else:
                self._kept.move_to_end(key)
            return stream


def _cut(span: Span) -> list[tuple[int, int]]:
    """Divide a line that is too long for an event into parts, without splitting characters.

    Returns:
        The beginning and the end of each part in the log.
    """
    _, log, first, last = span
    if last - first <= EVENT_LIMIT:
        return [(first, last)]
    data = read_part(log.path, first, last - first)
    parts: list[tuple[int, int]] = []
    start = 0
    while start < len(data):
        end = min(start + EVENT_LIMIT - 64, len(data))  # leaves room for a label
        while start < end < len(data) and end > start + 1 and data[end] & 0xC0 == 0x80:
            end -= 1
        parts.append((first + start, first + end))
        start = end
    return parts


def _append(path: Path, data: bytes | bytearray) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        files.write_all(descriptor, data)
    finally:
        os.close(descriptor)


def _records(path: Path, unit: int | bytes) -> bytes:
    """Read a file of records. Remove an incomplete last record, which a killed process may have written.

    Args:
        path: The file, which may be missing.
        unit: The size of a record in bytes, or the terminator of a record.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return b""
    whole = len(data) // unit * unit if isinstance(unit, int) else data.rfind(unit) + 1
    if whole < len(data):
        os.truncate(path, whole)
    return data[:whole]
