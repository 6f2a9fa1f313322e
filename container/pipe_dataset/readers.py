"""The readers of this process, which TensorFlow's graphs call by number.

The graph of a dataset may run in another process than the one that made it (a worker of a cluster with parameter
servers). So it names the functions below by fixed names, which every process registers for itself, and carries what
they need as text.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np

from container.contract import pipes
from container.contract.names import unknown
from container.formats import RecordFormat, tfrecord
from container.pipe_dataset import faults, leaving, native, places
from container.pipe_dataset.native import NativeReader
from container.pipe_dataset.stream import StreamReader

#: The names under which TensorFlow finds the functions.
OPEN, SEGMENT, RECORDS, CLOSE = (f"fleetfit_pipe_{name}" for name in ("open", "segment", "records", "close"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReadRequest:
    """A dataset's request to read a channel.

    Attributes:
        channel: The channel.
        record_format: The records' format.
        pipe_dir: The folder of the FIFOs; empty for this process's own.
        state_dir: The folder of the epochs' count; empty for this process's own.
        benchmark: Whether to print totals at the end.
        interval: After how many records to print how it goes; 0 for never.
        tolerated: How many damaged records in a row are left out.
    """

    channel: str
    record_format: RecordFormat
    pipe_dir: str = ""
    state_dir: str = ""
    benchmark: bool = False
    interval: int = 0
    tolerated: int = 0

    @classmethod
    def of(
        cls,
        channel: str,
        record_format: str,
        *,
        pipe_dir: str | os.PathLike[str] | None,
        state_dir: str | os.PathLike[str] | None,
        **more: Any,
    ) -> ReadRequest:
        """Check what a dataset was told.

        Args:
            channel: The channel.
            record_format: The format's name.
            pipe_dir: The folder of the FIFOs; None for this process's own.
            state_dir: The folder of the epochs' count; None for this process's own.
            more: The other attributes.

        Raises:
            ValueError: an unknown format, or an option that it does not have.
        """
        formats = [known.value for known in RecordFormat]
        if record_format not in formats:
            raise ValueError(unknown("record_format", record_format, formats))
        if more.get("tolerated") and record_format != RecordFormat.TFRECORD.value:
            raise ValueError(
                f"max_corrupted_records_to_skip is for record_format='TFRecord', which has checksums; got "
                f"{record_format!r}."
            )
        return cls(
            channel=channel,
            record_format=RecordFormat(record_format),
            pipe_dir=os.fspath(pipe_dir) if pipe_dir is not None else "",
            state_dir=os.fspath(state_dir) if state_dir is not None else "",
            **more,
        )

    def to_text(self) -> str:
        """Encode for :meth:`from_text`."""
        return json.dumps({**dataclasses.asdict(self), "record_format": self.record_format.value})

    @classmethod
    def from_text(cls, text: bytes | str) -> ReadRequest:
        """Read what :meth:`to_text` gave."""
        values = json.loads(text)
        return cls(**{**values, "record_format": RecordFormat(values["record_format"])})

    @property
    def segments(self) -> bool:
        """Whether TensorFlow reads the records, from files that it is given the names of."""
        return self.record_format is RecordFormat.TFRECORD and not self.tolerated

    def place(self) -> Path:
        """Return the folder of the FIFOs for this process."""
        return Path(self.pipe_dir) if self.pipe_dir else places.pipe_folder(self.channel, os.environ)

    def epochs(self) -> places.EpochCounter:
        """Return the count of epochs for this process."""
        folder = Path(self.state_dir) if self.state_dir else places.state_folder(self.place(), os.environ)
        return places.EpochCounter(folder, self.channel)


@dataclasses.dataclass
class _Open:
    request: ReadRequest
    reader: StreamReader
    records: Tolerant | None = None
    counted: int = 0
    finished: bool = False

    def finish(self) -> None:
        """Take note that there is no more."""
        if not self.finished:
            self.finished = True
            leaving.finished()


_readers: dict[int, _Open] = {}
#: What TensorFlow reads by itself.
_native: dict[NativeReader, ReadRequest] = {}
_numbers = itertools.count(1)
_lock = threading.Lock()
#: (state folder, channel) -> epoch and records to leave out, for the next reader.
_resumed: dict[tuple[str, str], tuple[int, int]] = {}
#: (state folder, channel) -> the epoch that all readers get from now on.
_chosen: dict[tuple[str, str], int] = {}
#: Held until the agent has made the next FIFO: two readers must not take one.
_choosing = threading.Lock()


def resume(request: ReadRequest, epoch: int, records: int) -> None:
    """Let the next reader begin within an epoch.

    Args:
        request: What is read.
        epoch: The epoch, from 0.
        records: How many of its records to leave out.
    """
    with _lock:
        _resumed[_key(request)] = (epoch, records)


def choose(request: ReadRequest, epoch: int) -> None:
    """Let all readers from now on begin an epoch anew.

    Args:
        request: What is read.
        epoch: The epoch, from 0.
    """
    with _lock:
        _chosen[_key(request)] = epoch


@leaving.asked()
def open_reader(text: bytes) -> Any:
    """Begin the next epoch.

    Returns:
        The reader's number.

    Raises:
        PipeError: the FIFO cannot be read.
    """
    request = ReadRequest.from_text(text)
    reader = open_stream(request)
    records = Tolerant(reader, request.tolerated) if request.tolerated else None
    with _lock:
        number = next(_numbers)
        _readers[number] = _Open(request, reader, records)
    leaving.opened()
    return np.int64(number)


def open_stream(request: ReadRequest) -> StreamReader:
    """Begin the next epoch.

    Raises:
        PipeError: the FIFO cannot be read.
    """
    place, epoch, file, skip = _begin(request)
    reader = StreamReader(request.channel, place, epoch, file, request.record_format, skip=skip)
    with _lock:
        faults.RECENT.append(reader)
    return reader


def _begin(request: ReadRequest) -> tuple[Path, int, int, int]:
    """Open the next FIFO: its folder, its number, the descriptor, and how many records to leave out."""
    with _lock:
        chosen = _chosen.get(_key(request))
    return _next(request) if chosen is None else _again(request, chosen)


def _next(request: ReadRequest) -> tuple[Path, int, int, int]:
    """Open the next epoch, or the one that is resumed."""
    place, epochs = request.place(), request.epochs()
    with _lock:
        wanted, skip = _resumed.pop(_key(request), (0, 0))
    epoch = epochs.take()
    while epoch < wanted:
        # An epoch that is not wanted any more is opened and left, as a script may do that reads on SageMaker.
        os.close(places.open_fifo(pipes.fifo(place, request.channel, epoch)))
        epoch = epochs.take()
    return place, epoch, places.open_fifo(pipes.fifo(place, request.channel, epoch)), skip


def _again(request: ReadRequest, epoch: int) -> tuple[Path, int, int, int]:
    """Open an epoch from its beginning, in whichever FIFO is next."""
    place, epochs = request.place(), request.epochs()
    with _choosing:
        number = places.await_newest(place, request.channel)
        epochs.begun(number)
        pipes.ask(epochs.folder, request.channel, number, epoch)
        return place, number, places.open_fifo(pipes.fifo(place, request.channel, number)), 0


def _begin_native(text: str) -> NativeReader:
    """Open a reader for the library; see :func:`open_reader`."""
    request = ReadRequest.from_text(text)
    place, epoch, file, skip = _begin(request)
    reader = NativeReader(request.channel, place, epoch, file, skip=skip)
    with _lock:
        _native[reader] = request
        faults.RECENT.append(reader)
    return reader


def _end_native(reader: NativeReader) -> None:
    """Close a reader for the library; see :func:`close_reader`."""
    with _lock:
        request = _native.pop(reader)
    _close(request, reader)


@leaving.asked()
def next_segment(number: Any) -> Any:
    """Return the name of the next segment.

    Raises:
        StopIteration: the epoch is over.
    """
    opened = _readers[int(number)]
    name = opened.reader.next_segment()
    if name is None:
        opened.finish()
        raise StopIteration
    return name.encode()


@leaving.asked()
def next_records(number: Any) -> Any:
    """Return the next records.

    Raises:
        StopIteration: the epoch is over.
    """
    opened = _readers[int(number)]
    found = opened.records.next_records() if opened.records is not None else opened.reader.next_records()
    if found is None:
        opened.finish()
        raise StopIteration
    interval = opened.request.interval
    if interval and (opened.counted + len(found)) // interval > opened.counted // interval:
        _say(opened.reader, f"records: {opened.counted + len(found)}")
    opened.counted += len(found)
    array = np.empty(len(found), object)
    array[:] = found
    return array


def close_reader(number: Any) -> Any:
    """Close a reader; it need not have reached its end."""
    with _lock:
        opened = _readers.pop(int(number), None)
    if opened is not None:
        _close(opened.request, opened.reader)
        leaving.closed(finished=opened.finished)
    return np.int64(0)


def _close(request: ReadRequest, reader: StreamReader | NativeReader) -> None:
    reader.close()
    if request.benchmark:
        count, seconds = reader.bytes_read, reader.seconds
        _say(reader, f"total read_time_ms: {seconds * 1000:.0f}")
        _say(reader, f"total read_bytes: {count}")
        _say(reader, f"total read_GB/s: {count / max(seconds, 1e-9) / (1 << 30):.3f}")


def _key(request: ReadRequest) -> tuple[str, str]:
    return request.state_dir or request.pipe_dir, request.channel


def _say(reader: StreamReader | NativeReader, text: str) -> None:
    print(f"PipeModeDataset {reader.channel}_{reader.epoch} {text}", flush=True)


def _excepthook_for(previous: Any) -> Any:
    """Turn TensorFlow's uncaught "corrupted record" into an error that names object, offset and record."""

    def excepthook(kind: Any, value: Any, trace: Any) -> None:
        fault = None
        if kind.__name__ == "DataLossError":
            try:
                fault = faults.explain(str(value))
            except Exception:  # noqa: BLE001 - TensorFlow's own words are better than a fault in here
                fault = None
        if fault is not None:
            fault.__cause__ = value
            fault.__traceback__ = trace
            kind, value = type(fault), fault
        previous(kind, value, trace)

    return excepthook


def register() -> None:
    """Make the functions known to TensorFlow in this process; may be called again.

    TensorFlow calls Python by a token that it makes up in each process. There is no public way to choose it.
    """
    from tensorflow.python.ops import script_ops

    registry = script_ops._py_funcs
    if registry.get(OPEN) is open_reader:
        return
    native.serve(_begin_native, _end_native)
    leaving.descriptor()  # what is registered last comes first at the end
    for token, function in (
        (OPEN, open_reader),
        (SEGMENT, next_segment),
        (RECORDS, next_records),
        (CLOSE, close_reader),
    ):
        registry._funcs[token] = function
    sys.excepthook = _excepthook_for(sys.excepthook)


class Tolerant:
    """TFRecords without the damaged ones, for ``max_corrupted_records_to_skip``.

    TensorFlow's reader leaves the rest of a file out with a damaged record. So here the checksums are computed in
    Python, which is slow: some megabytes in a second.

    Args:
        reader: The stream.
        tolerated: How many damaged records in a row are left out; one more is an error.
    """

    def __init__(self, reader: StreamReader, tolerated: int) -> None:
        self._reader = reader
        self._tolerated = tolerated
        self._in_a_row = 0

    def next_records(self) -> list[bytes] | None:
        """Return the next records.

        Raises:
            RecordError: there are too many damaged ones in a row.
        """
        while (found := self._reader.next_whole()) is not None:
            at, first, records = found
            good = []
            for number, record in enumerate(records):
                if tfrecord.is_whole(record):
                    self._in_a_row = 0
                    good.append(tfrecord.content(record))
                else:
                    self._leave_out(at, first + number)
                at += len(record)
            if good:
                return good
        return None

    def _leave_out(self, at: int, number: int) -> None:
        cause = "its data is damaged (the checksum is wrong)"
        fault = faults.at(self._reader, at, number, cause, framed=True)
        self._in_a_row += 1
        if self._in_a_row > self._tolerated:
            raise fault
        print(f"PipeModeDataset: skipped a record: {fault}", file=sys.stderr, flush=True)
