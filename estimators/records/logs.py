"""Write and read the logs of a job. The supervisor writes the logs, and any number of processes may read them.

The output of a process is stored unchanged in ``<process>.log``. Output is divided into pieces, which are lines or
states of a progress bar. A piece ends with ``\\n``, ``\\r`` or ``\\r\\n``. The last piece of a process may have no
terminator, and a line of many megabytes is split into pieces without terminators. ``<process>.times`` contains one
16-byte record for each piece: its time in nanoseconds since the epoch, and the offset of its end in the log.
"""

from __future__ import annotations

import bisect
import contextlib
import errno
import functools
import operator
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
from estimators.records.log_files import process_of, times_file
from estimators.records.private_files import explained, open_private
from estimators.records.record import JobRecord

_TIME = struct.Struct("<QQ")  # time_ns, end offset

#: When the writer holds this many bytes in memory, it writes them to the files.
_WRITE_LIMIT = 1 << 20
#: The approximate maximum number of bytes that one :meth:`LogReader.poll` reads from each process's log. It limits the
#: memory that a reader uses.
_READ_LIMIT = 8 << 20
_READ_PIECES = 32768
_READ_TIMES = _READ_PIECES * _TIME.size


# --- writing ---


class LogWriter:
    """The writer with which a job's supervisor appends the output of all processes to the logs in the record.

    Pieces are held in memory until :meth:`flush`, which the supervisor calls once per iteration of its loop. If the
    pieces take too much memory, they are written earlier.

    The recorded times never decrease, even if the clock is set back. Therefore a process's pieces stay in order when a
    reader merges the logs by time.

    Attributes:
        attempt: The number of the attempt that is being written, counted from 0.
    """

    def __init__(self, record: JobRecord, *, attempt: int = 0) -> None:
        self._record = record
        self.attempt = attempt
        self._streams: dict[tuple[str, str | None], _LogFile] = {}
        self._dirty: dict[tuple[str, str | None], _LogFile] = {}
        self._pending = 0
        self._early = False  # whether pieces were written since the last flush by the caller
        self._last_time = 0

    def start_attempt(self, attempt: int) -> None:
        """Switch to a new attempt. Subsequent pieces are written to the logs of the new attempt."""
        self._early = self.flush()
        self.attempt = attempt
        self._streams.clear()

    def write(self, piece: Piece, time_ns: int | None = None) -> None:
        """Add a piece of output.

        Args:
            piece: A piece of one process's output, as :func:`container.contract.wire.decode_line` returns it.
            time_ns: The time of the output, in nanoseconds since the epoch. With None, the current time is used.
        """
        moment = max(time.time_ns() if time_ns is None else time_ns, self._last_time)
        self._last_time = moment
        key = (piece.host, piece.process)
        stream = self._dirty.get(key)
        if stream is None:
            stream = self._streams.get(key)
            if stream is None:
                stream = _LogFile(self._record.log_file(piece.host, piece.process, self.attempt))
                self._streams[key] = stream
            self._dirty[key] = stream
        size = len(piece.data)
        stream.data += piece.data
        stream.end += size
        stream.times += _TIME.pack(moment, stream.end)
        self._pending += size
        if self._pending >= _WRITE_LIMIT:
            with contextlib.suppress(RecordError):  # the next flush by the caller raises the same error
                self._early = self.flush()
            self._pending = 0

    def flush(self) -> bool:
        """Write the pieces that are held in memory. Pieces that cannot be written stay in memory until the next flush.

        Returns:
            True if pieces were written since the last flush, so that readers have new output to read.

        Raises:
            RecordError: the disk is full, or the record has been removed.
        """
        wrote, self._early = bool(self._dirty) or self._early, False
        for key, stream in list(self._dirty.items()):
            with explained(stream.path, "write"):
                stream.flush()
            del self._dirty[key]
        self._pending = 0
        return wrote


class _LogFile:
    """The log file and the times file of one process.

    The files are not kept open, because a job may have hundreds of processes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data = bytearray()
        self.times = bytearray()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.end = path.stat().st_size if path.exists() else 0

    def flush(self) -> None:
        # Write the output first, because the offsets in the times file must refer to bytes that are in the log.
        if self.data:
            _append(self.path, self.data)
        _append(times_file(self.path), self.times)


def _append(path: Path, data: bytearray) -> None:
    """Append ``data`` to a file. Remove the written bytes from ``data``, even if an error occurs."""
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
    """A piece of one process's output with the time of its arrival.

    Attributes:
        time_ns: The time at which the piece arrived, in nanoseconds since the epoch.
        host: The name of the host on which the process runs.
        process: The name of the process, such as ``rank 3`` or ``ps``. None for the toolkit, the program that starts
            the host's processes.
        attempt: The number of the attempt, counted from 0.
        data: The unchanged output, including the terminator.
        number: The rank of a process whose name does not contain the rank, such as ``chief`` or ``worker``. None for
            any other process.
    """

    time_ns: int
    host: str
    process: str | None
    attempt: int
    data: bytes
    number: int | None = None

    @property
    def rank(self) -> int | None:
        """Return the rank of the process. Return None if the process is not a rank."""
        return rank_of(self.process) if self.number is None else self.number

    @property
    def text(self) -> str:
        """Return the text without its terminator. Bytes that are not UTF-8 are replaced."""
        return self.data.rstrip(b"\r\n").decode("utf-8", "replace")


class LogReader:
    """A reader that merges the logs of a job's processes by time, even while the logs grow.

    Readers keep no file open and share no state, so that any number of readers may read at the same time. Pieces of one
    process are in the order in which the process printed them. In the result of one read, the pieces of all processes
    are sorted by their times. A piece that is recorded after the read is returned by a later read, even if its time is
    earlier.
    """

    def __init__(
        self,
        record: JobRecord,
        rank: int | None = None,
        *,
        host: str | None = None,
    ) -> None:
        """Create a reader at the beginning of the logs.

        Args:
            record: The job's record.
            rank: The only rank to read. None for all processes.
            host: The only host to read. None for all hosts.
        """
        self._record = record
        self._host = host
        self._rank = rank
        self._logs: dict[str, ProcessLog] = {}

    @functools.cached_property
    def _rank_of(self) -> ranks.Numbering:
        return ranks.of_record(self._record)

    def poll(self, *, final: bool = False) -> list[LogLine]:
        """Return the next portion of output that has not been read yet.

        Call the method again until it returns an empty list.

        Args:
            final: Whether the job is over. If True, also return output whose times are missing because the supervisor
                was killed.
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
        """Yield all recorded output that has not been read yet, in portions."""
        while lines := self.poll(final=final):
            yield lines

    def skip(self, kept: int) -> int:
        """Skip the unread output of each process, except for the last pieces.

        Args:
            kept: The number of pieces to keep at the end of each process's log.

        Returns:
            The number of pieces that were skipped.
        """
        self._discover()
        return sum(log.skip(kept) for log in self._logs.values())

    def locate(self, *, final: bool = False) -> list[Span]:
        """Return the positions of the pieces that :meth:`poll` would return, and mark the pieces as read.

        :func:`read_spans` reads the output at the positions.
        """
        self._discover()
        portions = [(log, *log.look()) for log in self._logs.values()]
        # A portion that has reached the maximum size is incomplete. Later lines of other processes must wait for the
        # rest of the portion.
        horizon = min((times[-1][0] for _, times, more in portions if more), default=None)
        spans: list[Span] = []
        for log, times, _ in portions:
            spans += log.take(times, horizon)
        spans.sort(key=operator.itemgetter(0))  # by time
        if final and not spans:
            spans = [span for log in self._logs.values() for span in log.take_rest()]
        return spans

    def open(self, host: str, name: str, offset: int = 0) -> ProcessLog:
        """Add a process's log to this reader and return the log. Reading begins at an offset.

        Args:
            host: The host of the log.
            name: The name of the log, as in :attr:`ProcessLog.name`.
            offset: The offset of the first byte to read. If the offset is inside a piece, the rest of the piece is read
                as soon as the piece is complete.
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
                if not number.isdigit():
                    continue
                for file in names_in(f"{logs}/{folder}"):
                    stem = file.removesuffix(".times")
                    name = f"{folder}/{stem}"
                    if stem == file or f"{host}/{name}" in self._logs:
                        continue
                    process = process_of(stem)
                    if self._rank is None or self._rank == self._rank_of(host, process):
                        found.append(((int(number), natural_key(host), natural_key(process or "")), host, name))
        for _, host, name in sorted(found):
            self.open(host, name)


def read_spans(spans: Sequence[Span]) -> dict[ProcessLog, tuple[int, bytes]]:
    """Read the part of each log that the given spans cover, from the first span to the last span.

    Returns:
        The start offset and the bytes of each log.
    """
    ends = {log: end for _, log, _, end in spans}
    starts = {log: start for _, log, start, _ in reversed(spans)}
    return {log: (start, read_part(log.path, start, ends[log] - start)) for log, start in starts.items()}


class ProcessLog:
    """One process's log, and the position up to which the log has been read.

    Attributes:
        path: The path of the log file.
        name: The path of the log below the host's folder of logs, without the suffix, such as ``attempt-0/rank-3``.
        host: The host of the process.
        process: The name of the process. None for the toolkit.
        attempt: The number of the attempt, counted from 0.
    """

    def __init__(self, logs: Path, host: str, name: str) -> None:
        self.path = logs / f"{name}.log"
        self.name = name
        self.host = host
        folder, _, stem = name.partition("/")
        self.process = process_of(stem)
        self.attempt = int(folder.removeprefix("attempt-"))
        self._times = times_file(self.path)
        self._pieces = 0  # number of records of the times file that have been read
        self._offset = 0  # number of bytes of the log that have been read
        self._time_ns = 0

    def seek(self, offset: int) -> None:
        """Continue reading at an offset of the log."""
        ends = [end for _, end in _TIME.iter_unpack(_whole(read_part(self._times, 0)))]
        self._pieces = bisect.bisect_right(ends, offset)
        self._offset = offset

    def skip(self, kept: int) -> int:
        """Skip all pieces on record except the last ``kept`` pieces. Return the number of skipped pieces."""
        passed = size_of(self._times) // _TIME.size - kept - self._pieces
        if passed <= 0:
            return 0
        last = read_part(self._times, (self._pieces + passed - 1) * _TIME.size, _TIME.size)
        self._time_ns, self._offset = _TIME.unpack(last)
        self._pieces += passed
        return passed

    def look(self) -> tuple[list[tuple[int, int]], bool]:
        """Return the times and end offsets of the first unread pieces, and whether more unread pieces follow them.

        The pieces stay unread.
        """
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
        """Mark pieces from :meth:`look` as read, and return their spans.

        Args:
            times: The time and the end offset of each piece.
            horizon: The time after which pieces stay unread. None to mark all pieces.
        """
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
        """Return the spans of output that has no recorded time, and mark this output as read."""
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


#: The position of a piece of output: its time in nanoseconds since the epoch, its log, the offset of its first byte,
#: and the offset after its last byte.
Span = tuple[int, ProcessLog, int, int]


def size_of(path: Path) -> int:
    """Return the size of a file in bytes. Return 0 if the file does not exist."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def read_part(path: Path, offset: int, size: int = 1 << 62) -> bytes:
    """Read a part of a file. Return no bytes if the file does not exist."""
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
