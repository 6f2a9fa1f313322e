"""The logs of a job: written whole by the supervisor, read by any number of readers, printed for people.

A process's output is kept as it was, byte for byte, in ``<process>.log``; ``<process>.times`` beside it holds one
16-byte record per piece (time in nanoseconds since the epoch, end offset in the log). A piece ends with ``\\n``,
``\\r`` or ``\\r\\n``; only the last one of a process, and the parts of lines of many megabytes, have no terminator.
"""

from __future__ import annotations

import bisect
import contextlib
import errno
import functools
import os
import struct
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from container.contract.membership import natural_key
from container.contract.wire import Piece, rank_of, split_pieces
from container.system.files import names_in
from estimators.job.errors import RecordError
from estimators.records import ranks
from estimators.records.log_files import log_stem, process_of, times_file
from estimators.records.private_files import explained, open_private
from estimators.records.record import JobRecord

_TIME = struct.Struct("<QQ")  # time_ns, end offset

#: The writer flushes by itself when it holds this many bytes.
_WRITE_LIMIT = 1 << 20
#: A poll reads at most about this much of one process's log: it bounds the memory of a reader, not the log.
_READ_LIMIT = 8 << 20
_READ_PIECES = 32768
_READ_TIMES = _READ_PIECES * _TIME.size


# --- writing ---


class LogWriter:
    """The supervisor's side: takes pieces of output, appends them to the record.

    Pieces are held in memory until :meth:`flush`, which the supervisor calls once for all that a turn of its loop
    brings. Times never decrease, even when the clock is set back, so that a merge by time keeps the order of each
    process.
    """

    def __init__(self, record: JobRecord, *, attempt: int = 0) -> None:
        self._record = record
        self._attempt = attempt
        self._streams: dict[tuple[str, str | None], _LogFile] = {}
        self._dirty: dict[tuple[str, str | None], _LogFile] = {}
        self._pending = 0
        self._last_time = 0

    @property
    def attempt(self) -> int:
        """Which start of the job is being written, from 0."""
        return self._attempt

    def start_attempt(self, attempt: int) -> None:
        """Write what follows to the logs of another attempt."""
        self.flush()
        self._attempt = attempt
        self._streams.clear()

    def write(self, piece: Piece, time_ns: int | None = None) -> None:
        """Take a piece.

        Args:
            piece: What one process printed, as :func:`container.contract.wire.decode_line` gives it.
            time_ns: When, in nanoseconds since the epoch; default: now.
        """
        moment = max(time.time_ns() if time_ns is None else time_ns, self._last_time)
        self._last_time = moment
        key = (piece.host, piece.process)
        stream = self._dirty.get(key)
        if stream is None:
            stream = self._streams.get(key)
            if stream is None:
                stream = _LogFile(self._record.log_file(piece.host, piece.process, self._attempt))
                self._streams[key] = stream
            self._dirty[key] = stream
        size = len(piece.data)
        stream.data += piece.data
        stream.end += size
        stream.times += _TIME.pack(moment, stream.end)
        self._pending += size
        if self._pending >= _WRITE_LIMIT:
            with contextlib.suppress(RecordError):  # the caller's own flush will meet it again
                self.flush()
            self._pending = 0

    def flush(self) -> bool:
        """Write what is held; what cannot be written stays held for the next flush.

        Returns:
            Whether there was anything, so that readers have something new.

        Raises:
            RecordError: the disk is full, or the record is gone.
        """
        if not self._dirty:
            return False
        for key, stream in list(self._dirty.items()):
            with explained(stream.path, "write"):
                stream.flush()
            del self._dirty[key]
        self._pending = 0
        return True

    def close(self) -> None:
        """Flush; nothing else is held open."""
        self.flush()


class _LogFile:
    """One process's log and its times. No descriptor is kept: a job may have hundreds of processes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data = bytearray()
        self.times = bytearray()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.end = path.stat().st_size if path.exists() else 0

    def flush(self) -> None:
        # The bytes first: a time is written only for bytes that are there.
        if self.data:
            _append(self.path, self.data)
        _append(times_file(self.path), self.times)


def _append(path: Path, data: bytearray) -> None:
    """Append all of ``data`` to a file and take it out of the buffer as far as it was written."""
    descriptor = open_private(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        while data:
            written = os.write(descriptor, data)
            if written == 0:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            del data[:written]
    finally:
        os.close(descriptor)


# --- reading ---


class LogLine(NamedTuple):
    """A piece of one process's output, as it was, with its time.

    Attributes:
        time_ns: When it arrived, in nanoseconds since the epoch.
        host: The host that printed it.
        process: ``rank 3``, ``ps`` …; None for the toolkit's own words.
        attempt: Which start of the job, from 0.
        data: The bytes with their terminator.
        number: The rank of a process whose name does not say it: a chief, or its worker.
    """

    time_ns: int
    host: str
    process: str | None
    attempt: int
    data: bytes
    number: int | None = None

    @property
    def rank(self) -> int | None:
        """The rank, when the process is one."""
        return rank_of(self.process) if self.number is None else self.number

    @property
    def text(self) -> str:
        """The text without its terminator; what is not UTF-8 is replaced."""
        return self.data.rstrip(b"\r\n").decode("utf-8", "replace")


class LogReader:
    """Reads a job's logs while they grow, merged over processes by time.

    Readers keep no file open and share nothing: any number may read at once. Within a process the order is that of
    its output; between processes it is that of arrival, as far as it was on record when it was read.
    """

    def __init__(
        self,
        record: JobRecord,
        rank: int | None = None,
        *,
        host: str | None = None,
        process: str | None = None,
        attempt: int | None = None,
    ) -> None:
        """Start at the beginning of the logs.

        Args:
            record: The job's record.
            rank: Only this rank.
            host: Only this host.
            process: Only this process, ``ps`` say.
            attempt: Only this attempt.
        """
        self._record = record
        self._host = host
        self._attempt = attempt
        self._rank = rank
        self._stem = log_stem(process) if process is not None else None
        self._logs: dict[str, ProcessLog] = {}

    @functools.cached_property
    def _rank_of(self) -> ranks.Numbering:
        return ranks.of_record(self._record)

    def poll(self, *, final: bool = False) -> list[LogLine]:
        """Return new output, in bounded portions: call it again until it returns nothing.

        Args:
            final: The job is over and nothing will be added: also return bytes that a killed supervisor wrote without
                their time.
        """
        spans = self.locate(final=final)
        places = {
            log: (log.host, log.process, log.attempt, self._rank_of(log.host, log.process), *read)
            for log, read in read_spans(spans).items()
        }
        lines: list[LogLine] = []
        for time_ns, log, start, end in spans:
            host, process, attempt, rank, first, data = places[log]
            lines.append(LogLine(time_ns, host, process, attempt, data[start - first : end - first], rank))
        return lines

    def drain(self, *, final: bool = False) -> Iterator[list[LogLine]]:
        """Yield everything that is on record now and has not been read, in portions."""
        while lines := self.poll(final=final):
            yield lines

    def skip(self, kept: int) -> int:
        """Pass over the beginning of each process's log, but for its last pieces; returns how many were passed over.

        Args:
            kept: How many pieces of each process are left to read.
        """
        self._discover()
        return sum(log.skip(kept) for log in self._logs.values())

    def locate(self, *, final: bool = False) -> list[Span]:
        """Do as :meth:`poll` does, and return where the pieces are instead of what they say."""
        self._discover()
        portions = [(log, *log.look()) for log in self._logs.values()]
        # A portion that was cut short must not be overtaken by later lines of other processes.
        horizon = min((times[-1][0] for _, times, more in portions if more), default=None)
        spans: list[Span] = []
        for log, times, _ in portions:
            spans += log.take(times, horizon)
        spans.sort(key=_by_time)
        if final and not spans:
            spans = [span for log in self._logs.values() for span in log.take_rest()]
        return spans

    def open(self, host: str, name: str, offset: int = 0) -> ProcessLog:
        """Return a log, to be read from an offset on.

        Args:
            host: Its host.
            name: Its :attr:`ProcessLog.name`.
            offset: Where to go on. Of a piece that lies across it, the rest is read when all of it is there.
        """
        log = ProcessLog(self._record.host_dir(host) / "logs", host, name)
        if offset:
            log.seek(offset)
        return self._logs.setdefault(f"{host}/{name}", log)

    def _discover(self) -> None:
        hosts = [self._host] if self._host is not None else names_in(self._record.hosts_dir)
        found: list[tuple[tuple[int, object, object], str, str]] = []
        for host in hosts:
            logs = f"{self._record.hosts_dir}/{host}/logs"
            for folder in names_in(logs):
                number = folder.removeprefix("attempt-")
                if not number.isdigit() or (self._attempt is not None and int(number) != self._attempt):
                    continue
                for file in names_in(f"{logs}/{folder}"):
                    stem = file.removesuffix(".times")
                    name = f"{folder}/{stem}"
                    if stem == file or f"{host}/{name}" in self._logs or self._stem not in (None, stem):
                        continue
                    process = process_of(stem)
                    if self._rank is None or self._rank == self._rank_of(host, process):
                        found.append(((int(number), natural_key(host), natural_key(process or "")), host, name))
        for _, host, name in sorted(found):
            self.open(host, name)


def read_spans(spans: Sequence[Span]) -> dict[ProcessLog, tuple[int, bytes]]:
    """Read each log from its first span, whose offset is returned too, to its last one."""
    ends = {log: end for _, log, _, end in spans}
    starts = {log: start for _, log, start, _ in reversed(spans)}
    return {log: (start, read_part(log.path, start, ends[log] - start)) for log, start in starts.items()}


def _by_time(item: tuple[int, object, object, object]) -> int:
    return item[0]


class ProcessLog:
    """One process's log, and how far it has been read.

    Attributes:
        path: The file.
        name: ``attempt-0/rank-3``: its path below the host's logs, without the ending.
        host: The host.
        process: The process; None for the toolkit.
        attempt: Which start of the job, from 0.
    """

    def __init__(self, logs: Path, host: str, name: str) -> None:
        self.path = logs / f"{name}.log"
        self.name = name
        self.host = host
        folder, _, stem = name.partition("/")
        self.process = process_of(stem)
        self.attempt = int(folder.removeprefix("attempt-"))
        self._times = times_file(self.path)
        self._pieces = 0  # how many records of the times file have been taken
        self._offset = 0  # how many bytes of the log
        self._time_ns = 0

    def seek(self, offset: int) -> None:
        """Go on at an offset."""
        ends = [end for _, end in _TIME.iter_unpack(_whole(read_part(self._times, 0)))]
        self._pieces = bisect.bisect_right(ends, offset)
        self._offset = offset

    def skip(self, kept: int) -> int:
        """Go on where only the last pieces on record are left; returns how many were passed over."""
        passed = size_of(self._times) // _TIME.size - kept - self._pieces
        if passed <= 0:
            return 0
        last = read_part(self._times, (self._pieces + passed - 1) * _TIME.size, _TIME.size)
        self._time_ns, self._offset = _TIME.unpack(last)
        self._pieces += passed
        return passed

    def look(self) -> tuple[list[tuple[int, int]], bool]:
        """Return time and end of the next pieces, and whether there are more behind them."""
        start = self._pieces * _TIME.size
        if size_of(self._times) - start < _TIME.size:
            return [], False
        times = list(_TIME.iter_unpack(_whole(read_part(self._times, start, _READ_TIMES))))
        more = len(times) == _READ_PIECES
        limit = self._offset + _READ_LIMIT
        if times and times[-1][1] > limit:
            kept = max(1, sum(1 for _, end in times if end <= limit))
            more = more or kept < len(times)
            del times[kept:]
        return times, more

    def take(self, times: list[tuple[int, int]], horizon: int | None) -> list[Span]:
        """Take the pieces that :meth:`look` returned, up to a time."""
        start = self._offset
        spans: list[Span] = []
        for time_ns, end in times:
            if horizon is not None and time_ns > horizon:
                break
            spans.append((time_ns, self, start, end))
            start = end
        self._offset = start
        self._pieces += len(spans)
        if spans:
            self._time_ns = spans[-1][0]
        return spans

    def take_rest(self) -> list[Span]:
        """Take bytes behind the last recorded time."""
        buffer = bytearray(read_part(self.path, self._offset, _READ_LIMIT))
        if not buffer:
            return []
        with contextlib.suppress(FileNotFoundError):
            self._time_ns = self._time_ns or os.stat(self.path).st_mtime_ns
        spans: list[Span] = []
        for piece in split_pieces(buffer, final=True):
            spans.append((self._time_ns, self, self._offset, self._offset + len(piece)))
            self._offset += len(piece)
        return spans


#: A piece of output by its place: its time in nanoseconds since the epoch, its log, and the offsets of its first byte
#: and behind its last.
Span = tuple[int, ProcessLog, int, int]


def size_of(path: Path) -> int:
    """Return a file's size; 0 if it does not exist."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def read_part(path: Path, offset: int, size: int = 1 << 62) -> bytes:
    """Read a part of a file; empty if it does not exist."""
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
        return parts[0] if len(parts) == 1 else b"".join(parts)
    finally:
        os.close(descriptor)


def _whole(data: bytes) -> bytes:
    return data[: len(data) // _TIME.size * _TIME.size]
