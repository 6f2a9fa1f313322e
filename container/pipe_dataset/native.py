"""Connect TensorFlow's reader of TFRecords to a FIFO, with a library that is compiled from ``reader.cc`` beside this
file.

Provisioning, which installs a job's Python environment, compiles the library for the environment's TensorFlow. Without
the library, :mod:`container.pipe_dataset.stream` reads TFRecords, which is slower.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from container import formats
from container.contract import pipes
from container.contract.pipes import library_file
from container.formats import RecordFormat
from container.pipe_dataset import faults, leaving
from container.pipe_dataset.notes import Notes

#: Set to 0 to read without the library.
SWITCH = "FLEETFIT_NATIVE_PIPE"
_SOURCE = Path(__file__).with_name("reader.cc")
_SCHEME = "fleetfitpipe"
# The kinds of faults in reader.cc.
_BAD_HEADER, _CROSSES_BORDER, _END = 1, 2, 3
_BAD_HEADER_CAUSE = "it is not a valid TFRecord (the checksum of the record's length is wrong)"

_Number, _Pointer = ctypes.c_uint64, ctypes.POINTER(ctypes.c_uint64)
_Begin = ctypes.CFUNCTYPE(_Number, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t)
_End = ctypes.CFUNCTYPE(None, _Number)
_Explain = ctypes.CFUNCTYPE(
    None, _Number, ctypes.c_int, _Number, _Number, _Number, _Number, ctypes.c_void_p, ctypes.c_size_t
)

#: A function that opens a reader for the text of a request.
Begin: TypeAlias = "Callable[[str], NativeReader]"
#: A function that is called when TensorFlow has closed a reader.
End: TypeAlias = "Callable[[NativeReader], None]"

#: The readers that TensorFlow has open in this process, by number.
_open: dict[int, NativeReader] = {}
#: The functions that the library calls; this reference keeps them from being garbage-collected.
_served: list[Any] = []


@functools.cache
def library() -> Any:
    """Load the library into TensorFlow and return the library. Return None if the library is not installed or is
    switched off.

    Raises:
        PipeError: the library was built for a different version of TensorFlow.
    """
    if os.environ.get(SWITCH) == "0":
        return None
    path = library_file(Path(sys.prefix), _SOURCE)
    if not path.exists():
        return None
    import tensorflow as tf

    try:
        tf.experimental.register_filesystem_plugin(os.fspath(path))
        loaded = ctypes.CDLL(os.fspath(path))
    except Exception as error:
        raise faults.PipeError(
            f"{path} does not fit this TensorFlow: {error}. Rebuild it with `fleetfit install pipe`, or set "
            f"{SWITCH}=0: channels in Pipe mode are then read more slowly."
        ) from error
    loaded.fleetfit_pipe_open.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int, _Number]
    loaded.fleetfit_pipe_open.restype = _Number
    loaded.fleetfit_pipe_serve.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    loaded.fleetfit_pipe_forget.argtypes = [_Number]
    loaded.fleetfit_pipe_counts.argtypes = [_Number, _Pointer, _Pointer]
    loaded.fleetfit_pipe_find.argtypes = [_Number, _Number, _Pointer, _Pointer]
    return loaded


def serve(begin: Begin, end: End) -> bool:
    """Register the functions with which TensorFlow opens and closes channels in this process.

    Args:
        begin: A function that opens a reader. TensorFlow raises the error of this function.
        end: A function that is called when a reader is closed, in the thread that closes the reader.

    Returns:
        Whether the library is available.
    """
    loaded = library()
    if loaded is None or _served:
        return loaded is not None

    @_Begin
    def begin_stream(request: bytes, text: int, capacity: int) -> int:
        try:
            reader = begin(request.decode())
        except Exception as error:  # noqa: BLE001 - the caller is native code, which cannot catch exceptions
            _write(text, capacity, error)
            return 0
        return reader.number

    @_End
    def end_stream(number: int) -> None:
        reader = _open.pop(number, None)
        if reader is not None:
            end(reader)

    _served.extend((begin_stream, end_stream, _explain))
    loaded.fleetfit_pipe_serve(*_served)
    # TensorFlow's threads may still close files after Python has exited.
    atexit.register(_end_service, loaded, os.getpid())
    return True


def _end_service(loaded: Any, process: int) -> None:
    if os.getpid() == process:  # a forked child has none of the threads to wait for
        loaded.fleetfit_pipe_serve(None, None, None)


def name(request: str) -> str:
    """Return the file name under which TensorFlow reads a channel through the library.

    Args:
        request: The request to read the channel, as text (:meth:`ReadRequest.to_text`).
    """
    return f"{_SCHEME}://{request}"


class NativeReader:
    """A reader of one epoch of a channel. TensorFlow itself reads the FIFO.

    Args:
        channel: The name of the channel.
        place: The folder of the FIFO.
        epoch: The number of the FIFO.
        file: The descriptor of the FIFO, open for reading in non-blocking mode.
        skip: The number of records to skip at the beginning.

    Attributes:
        number: The number by which the library identifies the reader.
        notes: The host agent's notes about the objects.
    """

    record_format = RecordFormat.TFRECORD

    def __init__(self, channel: str, place: Path, epoch: int, file: int, *, skip: int = 0) -> None:
        self.channel = channel
        self.place = place
        self.epoch = epoch
        self.framing = formats.framing(self.record_format)
        path = pipes.notes_file(place, channel, epoch)
        self.notes = Notes(path)
        self._library = library()
        pipes.widen(file)
        try:
            notes = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # on SageMaker, there are no notes
            notes = -1
        self.number = int(self._library.fleetfit_pipe_open(file, notes, leaving.descriptor(), skip))
        _open[self.number] = self

    @property
    def bytes_read(self) -> int:
        """Return the number of bytes read so far."""
        return self._counts()[0]

    @property
    def seconds(self) -> float:
        """Return the time that was spent reading and waiting, in seconds."""
        return self._counts()[1] / 1e9

    def find(self, position: int) -> tuple[int, int] | None:
        """Find the record at the position that TensorFlow's error message names.

        Only the most recent records can be found.

        Returns:
            The offset of the record in the stream, and the number of the record, from 0. None if the record is not
            found.
        """
        offset, record = _Number(), _Number()
        if self._library.fleetfit_pipe_find(self.number, position, ctypes.byref(offset), ctypes.byref(record)):
            return offset.value, record.value
        return None

    def close(self) -> None:
        """Close the file of notes. The method is called after TensorFlow has closed the FIFO."""
        self.notes.close()

    def __del__(self) -> None:
        self._library.fleetfit_pipe_forget(self.number)

    def _counts(self) -> tuple[int, int]:
        count, nanoseconds = _Number(), _Number()
        self._library.fleetfit_pipe_counts(self.number, ctypes.byref(count), ctypes.byref(nanoseconds))
        return count.value, nanoseconds.value

    def fault(self, kind: int, offset: int, record: int, there: int, wanted: int) -> Exception | None:
        """Return the error that ended the stream early. Return None if the stream is complete.

        Args:
            kind: The kind of fault that the library has found.
            offset: The offset in the stream at which the record begins, in bytes.
            record: The number of the record, from 0.
            there: The number of bytes of the record that were received.
            wanted: The expected number of bytes of the record; 0 if unknown.
        """
        if kind == _END:
            said = faults.of_agent(self)
            if said is not None or not there:
                return said
        elif kind == _BAD_HEADER:
            return faults.at(self, offset, record, _BAD_HEADER_CAUSE)
        wanted_words = f"{wanted:,}" if wanted else f"at least {formats.tfrecord.HEADER_SIZE:,}"
        cause = f"it is cut off: it has {there:,} of {wanted_words} bytes"
        return faults.at(self, offset, record, cause, framed=kind == _CROSSES_BORDER)


@_Explain
def _explain(
    number: int, kind: int, offset: int, record: int, there: int, wanted: int, text: int, capacity: int
) -> None:
    """Write a description of a fault into the library's buffer. The library calls this function in one of TensorFlow's
    threads.
    """
    try:
        reader = _open.get(number)
        fault = reader.fault(kind, offset, record, there, wanted) if reader is not None else None
    except Exception as error:  # noqa: BLE001 - the caller is native code, which cannot catch exceptions
        fault = error
    if fault is not None:
        _write(text, capacity, fault)


def _write(text: int, capacity: int, error: Exception) -> None:
    words = f"{type(error).__name__}: {error}".encode()[:capacity]
    ctypes.memmove(text, words, len(words))
