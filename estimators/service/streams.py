"""A host's log as a sequence of events whose order never changes: what CloudWatch's clients count on.

A record keeps each process's output apart. The first time that a line is given out its place among the others is
settled and written to ``service/<host>.events`` in the record, 24 bytes for each event. So clients that resume by a
number or by a time lose nothing and get nothing twice, also when the endpoint is started again meanwhile.

Only times are read to settle the order; the text is read from the logs when somebody asks for it.
"""

from __future__ import annotations

import bisect
import collections
import os
import struct
import threading
from pathlib import Path
from typing import NamedTuple

from container.contract import wire
from container.contract.membership import natural_key
from estimators.records.record import JobRecord, process_of, times_file

#: CloudWatch's largest event, in bytes.
EVENT_LIMIT = 256 * 1024 - 26

#: time in ms since the epoch, offset in the log, length, number of the log among the host's.
_EVENT = struct.Struct("<QQIHxx")
_TIME = struct.Struct("<QQ")  # as estimators.records.logs writes it: time in ns, end offset
#: How many lines of one process are looked at at once.
_PORTION = 65536
#: How many hosts' positions are kept in memory.
_KEPT = 4096
#: One for each index, whichever object writes it.
_LOCKS = [threading.Lock() for _ in range(64)]


class Event(NamedTuple):
    """One event.

    Attributes:
        time_ms: When, in milliseconds since the epoch; never less than that of the event before.
        text: What was printed, without its line end.
    """

    time_ms: int
    text: str


class _Found(NamedTuple):
    time_ns: int
    source: int
    start: int
    end: int


class Stream:
    """The log of one host.

    Args:
        record: The job's record.
        host: The host.
        labelled: Whether each line says which process printed it.
    """

    def __init__(self, record: JobRecord, host: str, *, labelled: bool) -> None:
        self._logs = record.host_dir(host) / "logs"
        self._host = host
        self._labelled = labelled
        folder = record.path / "service"
        self._index = folder / f"{host}.events"
        self._names = folder / f"{host}.sources"
        self._lock = _LOCKS[hash(str(self._index)) % len(_LOCKS)]
        self._loaded = False
        self._count = 0
        self._last_ms = 0
        self._sources: list[str] = []  # paths below the host's logs, without ending
        self._pieces: list[int] = []  # how many of each have been settled
        self._ends: list[int] = []  # up to which byte
        self._finished = False

    # --- settling the order ---

    def extend(self, *, over: bool) -> int:
        """Settle the order of what is new.

        Args:
            over: Whether the job is over, so that nothing will be added.

        Returns:
            How many events there are.
        """
        with self._lock:
            if not self._loaded or _size(self._index) != self._count * _EVENT.size:  # another object wrote to it
                self._load()
            try:
                self._settle(over=over)
            except BaseException:
                self._loaded = False  # a full disk, say: what was not written is looked for again
                raise
            return self._count

    def _settle(self, *, over: bool) -> None:
        while not self._finished:
            found = self._look()
            if not found:
                if over:
                    self._append(self._untimed())
                    self._finished = True
                break
            self._append(found)

    def _load(self) -> None:
        try:
            names = self._names.read_bytes()
        except FileNotFoundError:
            names = b""
        complete = names[: names.rfind(b"\n") + 1]
        if len(complete) < len(names):
            os.truncate(self._names, len(complete))  # as below
        self._sources = complete.decode().split("\n")[:-1]
        ends = [0] * len(self._sources)
        try:
            data = self._index.read_bytes()
        except FileNotFoundError:
            data = b""
        whole = len(data) // _EVENT.size * _EVENT.size
        if whole < len(data):
            os.truncate(self._index, whole)  # its writer was killed
        self._last_ms = 0
        for time_ms, start, length, source in _EVENT.iter_unpack(data[:whole]):
            ends[source] = max(ends[source], start + length)
            self._last_ms = time_ms
        self._count = whole // _EVENT.size
        self._ends = ends
        self._pieces = [self._pieces_until(name, end) for name, end in zip(self._sources, ends, strict=True)]
        self._loaded = True

    def _pieces_until(self, name: str, end: int) -> int:
        """How many pieces of a log lie before an offset. A piece that was cut counts when all of it is there."""
        offsets = [offset for _, offset in _TIME.iter_unpack(_whole(_read(self._times(name), 0)))]
        return bisect.bisect_right(offsets, end)

    def _discover(self) -> None:
        known = set(self._sources)
        new = [
            f"{attempt}/{name.removesuffix('.times')}"
            for attempt in _names(self._logs)
            for name in _names(self._logs / attempt)
            if name.endswith(".times") and f"{attempt}/{name.removesuffix('.times')}" not in known
        ]
        if new:
            new.sort(key=natural_key)
            self._index.parent.mkdir(mode=0o700, exist_ok=True)
            with open(os.open(self._names, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "w") as file:
                file.write("".join(f"{name}\n" for name in new))
            self._sources += new
            self._pieces += [0] * len(new)
            self._ends += [0] * len(new)

    def _look(self) -> list[_Found]:
        """Some new pieces of all processes, in the order of their times."""
        self._discover()
        found: list[_Found] = []
        horizon: int | None = None
        for number, name in enumerate(self._sources):
            start = self._pieces[number] * _TIME.size
            data = _whole(_read(self._times(name), start, _PORTION * _TIME.size))
            end = self._ends[number]
            for time_ns, following in _TIME.iter_unpack(data):
                found.append(_Found(time_ns, number, end, following))
                end = following
            if len(data) == _PORTION * _TIME.size:  # there may be more, which later lines must not overtake
                horizon = min(horizon or found[-1].time_ns, found[-1].time_ns)
        if horizon is not None:
            found = [piece for piece in found if piece.time_ns <= horizon]
        found.sort(key=lambda piece: piece.time_ns)
        for piece in found:
            self._pieces[piece.source] += 1
        return found

    def _untimed(self) -> list[_Found]:
        """What a killed supervisor wrote without its time."""
        found: list[_Found] = []
        for number, name in enumerate(self._sources):
            rest = bytearray(_read(self._log(name), self._ends[number]))
            end = self._ends[number]
            for piece in wire.split_pieces(rest, final=True):
                found.append(_Found(self._last_ms * 1_000_000, number, end, end + len(piece)))
                end += len(piece)
        return found

    def _append(self, found: list[_Found]) -> None:
        if not found:
            return
        data = bytearray()
        for piece in found:
            self._last_ms = max(self._last_ms, piece.time_ns // 1_000_000)
            for start, end in self._cut(piece):
                data += _EVENT.pack(self._last_ms, start, end - start, piece.source)
            self._ends[piece.source] = piece.end
        descriptor = os.open(self._index, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
        finally:
            os.close(descriptor)
        self._count += len(data) // _EVENT.size

    def _cut(self, piece: _Found) -> list[tuple[int, int]]:
        """A piece that is too long for an event, in parts that do not cut a character."""
        if piece.end - piece.start <= EVENT_LIMIT:
            return [(piece.start, piece.end)]
        data = _read(self._log(self._sources[piece.source]), piece.start, piece.end - piece.start)
        parts: list[tuple[int, int]] = []
        start = 0
        while start < len(data):
            end = min(start + EVENT_LIMIT - 64, len(data))  # with room for a label
            while start < end < len(data) and end > start + 1 and data[end] & 0xC0 == 0x80:
                end -= 1
            parts.append((piece.start + start, piece.start + end))
            start = end
        return parts

    # --- reading ---

    def read(self, start: int, stop: int, *, most_bytes: int = 1 << 20) -> list[Event]:
        """The events ``start`` … ``stop - 1``, or as many of them from the start as hold ``most_bytes``."""
        data = _read(self._index, start * _EVENT.size, (stop - start) * _EVENT.size)
        wanted: list[tuple[int, int, int, int]] = []
        total = 0
        for item in _EVENT.iter_unpack(data[: len(data) // _EVENT.size * _EVENT.size]):
            total += item[2] + 26
            if wanted and total > most_bytes:
                break
            wanted.append(item)
        spans: dict[int, tuple[int, int]] = {}
        for _, offset, length, source in wanted:
            low, high = spans.get(source, (offset, offset))
            spans[source] = (min(low, offset), max(high, offset + length))
        texts = {
            source: _read(self._log(self._sources[source]), low, high - low) for source, (low, high) in spans.items()
        }
        labels = {source: self._label(source) for source in spans}
        events: list[Event] = []
        for time_ms, offset, length, source in wanted:
            at = offset - spans[source][0]
            line = texts[source][at : at + length].rstrip(b"\r\n").decode("utf-8", "replace")
            events.append(Event(time_ms, labels[source] + line))
        return events

    def times(self, start: int, stop: int) -> list[int]:
        """The times of events, in ms."""
        data = _read(self._index, start * _EVENT.size, (stop - start) * _EVENT.size)
        return [item[0] for item in _EVENT.iter_unpack(data[: len(data) // _EVENT.size * _EVENT.size])]

    def first_at(self, time_ms: int, count: int) -> int:
        """The number of the first event at or after a time; ``count`` if there is none."""
        low, high = 0, count
        while low < high:
            middle = (low + high) // 2
            times = self.times(middle, middle + 1)
            if times and times[0] < time_ms:
                low = middle + 1
            else:
                high = middle
        return low

    def _label(self, source: int) -> str:
        if not self._labelled:
            return ""
        return wire.prefix(self._host, process_of(self._sources[source].rpartition("/")[2])) + " "

    def _times(self, name: str) -> Path:
        return times_file(self._log(name))

    def _log(self, name: str) -> Path:
        return self._logs / f"{name}.log"


class Streams:
    """The streams of all jobs; positions of those that were asked for lately stay in memory."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: collections.OrderedDict[tuple[str, int], Stream] = collections.OrderedDict()

    def get(self, record: JobRecord, host: str, *, labelled: bool) -> Stream:
        """The stream of a host; the same object for the same record."""
        key = (str(record.host_dir(host)), record.path.stat().st_ino)
        with self._lock:
            stream = self._kept.get(key)
            if stream is None:
                stream = self._kept[key] = Stream(record, host, labelled=labelled)
                if len(self._kept) > _KEPT:
                    self._kept.popitem(last=False)
            else:
                self._kept.move_to_end(key)
            return stream


def _read(path: Path, offset: int, size: int = 1 << 62) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    try:
        size = min(size, os.fstat(descriptor).st_size - offset)
        parts: list[bytes] = []
        while size > 0 and (part := os.pread(descriptor, size, offset)):
            parts.append(part)
            offset += len(part)
            size -= len(part)
        return b"".join(parts)
    finally:
        os.close(descriptor)


def _size(path: Path) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def _whole(data: bytes) -> bytes:
    return data[: len(data) // _TIME.size * _TIME.size]


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
