"""The logs of a job: written whole by the supervisor, read by any number of readers, printed for people.

A process's output is kept as it was, byte for byte, in ``<process>.log``; ``<process>.times`` beside it holds one
16-byte record per piece (time in nanoseconds since the epoch, end offset in the log). A piece ends with ``\\n``,
``\\r`` or ``\\r\\n``; only the last one of a process, and the parts of lines of many megabytes, have no terminator.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from container.contract.membership import natural_key
from container.contract.wire import Piece, rank_of, split_pieces
from estimators.job.errors import RecordError
from estimators.records import ranks
from estimators.records.record import JobRecord, explained, log_stem, open_private, process_of, times_file

_TIME = struct.Struct("<QQ")  # time_ns, end offset

#: The writer flushes by itself when it holds this many bytes.
_WRITE_LIMIT = 1 << 20
#: A poll reads at most about this much of one process's log: it bounds the memory of a reader, not the log.
_READ_LIMIT = 8 << 20
_READ_PIECES = 32768


# --- writing ---


class LogWriter:
    """The supervisor's side: takes pieces of output, appends them to the record.

    Pieces are held in memory until :meth:`flush`, which the supervisor calls when it has nothing else to do. Times
    never decrease, even when the clock is set back, so that a merge by time keeps the order of each process.
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
        self._rank_of = ranks.of_record(record)
        self._stem = log_stem(process) if process is not None else None
        self._sources: dict[str, _Source] = {}

    def poll(self, *, final: bool = False) -> list[LogLine]:
        """Return new output, in bounded portions: call it again until it returns nothing.

        Args:
            final: The job is over and nothing will be added: also give bytes that a killed supervisor wrote without
                their time.
        """
        self._discover()
        portions = [portion for source in self._sources.values() if (portion := source.read())]
        # A portion that was cut short must not be overtaken by later lines of other processes.
        cut = [portion.last for portion in portions if portion.more]
        horizon = min(cut) if cut else None
        lines: list[LogLine] = []
        for portion in portions:
            lines += portion.take(horizon)
        if len(portions) > 1:
            lines.sort(key=_by_time)
        if final and not lines:
            for source in self._sources.values():
                lines += source.rest()
        return lines

    def drain(self, *, final: bool = False) -> Iterator[list[LogLine]]:
        """Yield everything that is on record now and has not been read, in portions."""
        while lines := self.poll(final=final):
            yield lines

    def _discover(self) -> None:
        hosts = [self._host] if self._host is not None else _names(self._record.hosts_dir)
        found: list[_Source] = []
        for host in hosts:
            logs = f"{self._record.hosts_dir}/{host}/logs"
            for attempt_name in _names(logs):
                number = attempt_name.removeprefix("attempt-")
                if not number.isdigit() or (self._attempt is not None and int(number) != self._attempt):
                    continue
                folder = f"{logs}/{attempt_name}"
                for name in _names(folder):
                    path = f"{folder}/{name}"
                    if path in self._sources or not name.endswith(".times"):
                        continue
                    stem = name.removesuffix(".times")
                    process = process_of(stem)
                    rank = self._rank_of(host, process)
                    if self._stem in (None, stem) and self._rank in (None, rank):
                        found.append(_Source(Path(path), host, process, int(number), rank))
        for source in sorted(found, key=_natural):
            self._sources[str(source.times)] = source


def _natural(source: _Source) -> tuple[int, object, object]:
    return source.attempt, natural_key(source.host), natural_key(source.process or "")


def _by_time(line: LogLine) -> int:
    return line[0]


def _names(folder: str | Path) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


class _Source:
    """How far one process's log has been read."""

    def __init__(self, times: Path, host: str, process: str | None, attempt: int, rank: int | None) -> None:
        self.times = times
        self.log = times.with_suffix(".log")
        self.host = host
        self.process = process
        self.attempt = attempt
        self.rank = rank
        self.pieces = 0  # how many records of the times file have been given out
        self.offset = 0  # how many bytes of the log
        self.time_ns = 0

    def read(self) -> _Portion | None:
        start = self.pieces * _TIME.size
        try:
            size = os.stat(self.times).st_size
        except FileNotFoundError:
            return None  # the record was removed while it was read
        if size - start < _TIME.size:
            return None
        wanted = min(size - start, _READ_PIECES * _TIME.size)
        records = list(_TIME.iter_unpack(_whole(_read(self.times, start, wanted))))
        if not records:
            return None
        more = size - start - wanted >= _TIME.size
        limit = self.offset + _READ_LIMIT
        if records[-1][1] > limit:
            kept = max(1, sum(1 for _, end in records if end <= limit))
            more = more or kept < len(records)
            del records[kept:]
        data = _read(self.log, self.offset, records[-1][1] - self.offset)
        return _Portion(self, records, data, more)

    def rest(self) -> list[LogLine]:
        """Return the bytes behind the last recorded time."""
        try:
            size = os.stat(self.log).st_size
            time_ns = self.time_ns or os.stat(self.log).st_mtime_ns
        except FileNotFoundError:
            return []
        if size <= self.offset:
            return []
        buffer = bytearray(_read(self.log, self.offset, min(size - self.offset, _READ_LIMIT)))
        self.offset += len(buffer)
        return [
            LogLine(time_ns, self.host, self.process, self.attempt, piece, self.rank)
            for piece in split_pieces(buffer, final=True)
        ]


class _Portion:
    """Some new pieces of one process, not yet given out."""

    def __init__(self, source: _Source, records: list[tuple[int, int]], data: bytes, more: bool) -> None:
        self.source = source
        self.records = records
        self.data = data
        self.more = more

    @property
    def last(self) -> int:
        return self.records[-1][0]

    def take(self, horizon: int | None) -> list[LogLine]:
        source, data = self.source, self.data
        host, process, attempt, rank = source.host, source.process, source.attempt, source.rank
        base = start = source.offset
        lines: list[LogLine] = []
        for time_ns, end in self.records:
            if horizon is not None and time_ns > horizon:
                break
            lines.append(LogLine(time_ns, host, process, attempt, data[start - base : end - base], rank))
            start = end
        source.offset = start
        source.pieces += len(lines)
        if lines:
            source.time_ns = lines[-1].time_ns
        return lines


def _read(path: Path, offset: int, size: int) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    try:
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
