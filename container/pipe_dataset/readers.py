"""Manage the readers of this process. TensorFlow's graphs refer to a reader by its number.

A dataset's graph may run in a process that has not created the dataset, for example in a worker of a cluster with
parameter servers. Therefore the graph refers to the functions below by fixed names, and contains their arguments as
text. Every process registers the functions under these names.
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
from container.contract.frozen import dataclass
from container.contract.names import unknown
from container.formats import RecordFormat, tfrecord
from container.pipe_dataset import faults, leaving, native, places
from container.pipe_dataset.native import NativeReader
from container.pipe_dataset.stream import StreamReader

#: The names under which TensorFlow finds the functions.
OPEN, SEGMENT, RECORDS, CLOSE = (f"fleetfit_pipe_{name}" for name in ("open", "segment", "records", "close"))


@dataclass(frozen=True, kw_only=True)
class ReadRequest:
    """A dataset's request to read a channel.

    Attributes:
        channel: The name of the channel.
        record_format: The format of the records.
        pipe_dir: The folder of the FIFOs. If empty, the default folder of this process.
        state_dir: The folder with the count of epochs. If empty, the default folder of this process.
        benchmark: Whether to print totals at the end.
        interval: The number of records after which to print the count; 0 for never.
        tolerated: The maximum number of damaged records in a row that are skipped.
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
        """Create a request from the arguments of a dataset, and validate the format.

        Args:
            channel: The name of the channel.
            record_format: The name of the format.
            pipe_dir: The folder of the FIFOs. If None, the default folder of this process.
            state_dir: The folder with the count of epochs. If None, the default folder of this process.
            more: The values of ``benchmark``, ``interval`` and ``tolerated``.

        Raises:
            ValueError: the format is unknown, or does not support an option.
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
        """Encode the request as a string that :meth:`from_text` can read."""
        return json.dumps({**dataclasses.asdict(self), "record_format": self.record_format.value})

    @classmethod
    def from_text(cls, text: bytes | str) -> ReadRequest:
        """Create a request from the string that :meth:`to_text` returned."""
        values = json.loads(text)
        return cls(**{**values, "record_format": RecordFormat(values["record_format"])})

    @property
    def segments(self) -> bool:
        """Return whether TensorFlow itself reads the records, from files whose names Python returns."""
        return self.record_format is RecordFormat.TFRECORD and not self.tolerated

    def place(self) -> Path:
        """Return the folder of the FIFOs that this process reads."""
        return Path(self.pipe_dir) if self.pipe_dir else places.pipe_folder(self.channel, os.environ)

    def epochs(self) -> places.EpochCounter:
        """Return the counter of this process's epochs."""
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
        """Record that the stream has ended."""
        if not self.finished:
            self.finished = True
            leaving.finished()


_readers: dict[int, _Open] = {}
#: Readers whose FIFO TensorFlow itself reads.
_native: dict[NativeReader, ReadRequest] = {}
_numbers = itertools.count(1)
_lock = threading.Lock()
#: (state folder, channel) -> epoch and number of records to skip, for the next reader.
_resumed: dict[tuple[str, str], tuple[int, int]] = {}
#: (state folder, channel) -> the epoch that all further readers read.
_chosen: dict[tuple[str, str], int] = {}
#: Held while a reader opens a FIFO, until the host agent has created the next FIFO. Otherwise two readers could open
#: the same FIFO.
_choosing = threading.Lock()


def resume(request: ReadRequest, epoch: int, records: int) -> None:
    """Make the next reader start within an epoch.

    Args:
        request: The request to read the channel.
        epoch: The number of the epoch, from 0.
        records: The number of records of that epoch to skip.
    """
    with _lock:
        _resumed[_key(request)] = (epoch, records)


def choose(request: ReadRequest, epoch: int) -> None:
    """Make all later readers read one epoch from its beginning.

    Args:
        request: The request to read the channel.
        epoch: The number of the epoch, from 0.
    """
    with _lock:
        _chosen[_key(request)] = epoch


@leaving.asked()
def open_reader(text: bytes) -> Any:
    """Open a reader of the next epoch. TensorFlow calls this function.

    Returns:
        The number of the reader.

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
    """Open and return a reader of the next epoch.

    Raises:
        PipeError: the FIFO cannot be read.
    """
    place, epoch, file, skip = _begin(request)
    reader = StreamReader(request.channel, place, epoch, file, request.record_format, skip=skip)
    with _lock:
        faults.RECENT.append(reader)
    return reader


def _begin(request: ReadRequest) -> tuple[Path, int, int, int]:
    """Open the FIFO of the next epoch, or of the epoch that :func:`choose` has chosen.

    Returns:
        The folder of the FIFO, the number of the FIFO, its descriptor, and the number of records to skip.
    """
    with _lock:
        chosen = _chosen.get(_key(request))
    return _next(request) if chosen is None else _again(request, chosen)


def _next(request: ReadRequest) -> tuple[Path, int, int, int]:
    """Open the FIFO of the next epoch, or of the epoch to resume."""
    place, epochs = request.place(), request.epochs()
    with _lock:
        wanted, skip = _resumed.pop(_key(request), (0, 0))
    epoch = epochs.take()
    while epoch < wanted:
        # Open and close the FIFO of each epoch before the wanted epoch, as a script on SageMaker may do.
        os.close(places.open_fifo(pipes.fifo(place, request.channel, epoch)))
        epoch = epochs.take()
    return place, epoch, places.open_fifo(pipes.fifo(place, request.channel, epoch)), skip


def _again(request: ReadRequest, epoch: int) -> tuple[Path, int, int, int]:
    """Open the next FIFO, into which the host agent must write the given epoch from its beginning."""
    place, epochs = request.place(), request.epochs()
    with _choosing:
        number = places.await_newest(place, request.channel)
        epochs.begun(number)
        pipes.ask(epochs.folder, request.channel, number, epoch)
        return place, number, places.open_fifo(pipes.fifo(place, request.channel, number)), 0


def _begin_native(text: str) -> NativeReader:
    """Open a reader of the next epoch. TensorFlow itself reads the FIFO.

    The library (:mod:`container.pipe_dataset.native`) calls this function.
    """
    request = ReadRequest.from_text(text)
    place, epoch, file, skip = _begin(request)
    reader = NativeReader(request.channel, place, epoch, file, skip=skip)
    with _lock:
        _native[reader] = request
        faults.RECENT.append(reader)
    return reader


def _end_native(reader: NativeReader) -> None:
    """Close a reader that :func:`_begin_native` has opened. The library calls this function."""
    with _lock:
        request = _native.pop(reader)
    _close(request, reader)


@leaving.asked()
def next_segment(number: Any) -> Any:
    """Return the file name of the next segment, which is a file in memory that contains some of the records.

    Raises:
        StopIteration: the epoch has ended.
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
        StopIteration: the epoch has ended.
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
    """Close a reader, even if the reader has not reached the end of the stream."""
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
    """Return an exception hook that replaces TensorFlow's error "corrupted record".

    The new error names the object, the offset and the record.
    """

    def excepthook(kind: Any, value: Any, trace: Any) -> None:
        fault = None
        if kind.__name__ == "DataLossError":
            try:
                fault = faults.explain(str(value))
            except Exception:  # noqa: BLE001 - after an error here, TensorFlow's own message is printed
                fault = None
        if fault is not None:
            fault.__cause__ = value
            fault.__traceback__ = trace
            kind, value = type(fault), fault
        previous(kind, value, trace)

    return excepthook


def register() -> None:
    """Register the functions with TensorFlow in this process. If they are already registered, do nothing.

    TensorFlow calls Python functions by tokens that it generates in each process. This function sets fixed tokens in
    TensorFlow's private registry, because TensorFlow has no public API to choose a token.
    """
    from tensorflow.python.ops import script_ops

    registry = script_ops._py_funcs
    if registry.get(OPEN) is open_reader:
        return
    native.serve(_begin_native, _end_native)
    leaving.descriptor()  # registered last, because atexit calls the last registered function first
    for token, function in (
        (OPEN, open_reader),
        (SEGMENT, next_segment),
        (RECORDS, next_records),
        (CLOSE, close_reader),
    ):
        registry._funcs[token] = function
    sys.excepthook = _excepthook_for(sys.excepthook)


class Tolerant:
    """Read TFRecords and omit the damaged ones, for ``max_corrupted_records_to_skip``.

    After a damaged record, TensorFlow's reader would skip the rest of the file. Therefore the checksums are computed in
    Python, which is slow (some megabytes per second).

    Args:
        reader: The reader of the stream.
        tolerated: The maximum number of damaged records in a row that are skipped. If more records in a row are
            damaged, an error is raised.
    """

    def __init__(self, reader: StreamReader, tolerated: int) -> None:
        self._reader = reader
        self._tolerated = tolerated
        self._in_a_row = 0

    def next_records(self) -> list[bytes] | None:
        """Return the next undamaged records. Return None at the end of the stream.

        Raises:
            DamagedRecordError: more damaged records in a row than tolerated.
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
