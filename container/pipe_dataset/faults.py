"""Find out which object and which record of a stream are damaged, for error messages.

A stream consists of the contents of several objects, such as the files of a channel in S3. The host agent is fleetfit's
process that writes the stream. In its notes, the agent records at which offset of the stream each object begins.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections import deque
from typing import TYPE_CHECKING, TypeAlias

from container import formats
from container.formats import DamagedRecordError, FramingError, tfrecord

if TYPE_CHECKING:
    from container.contract.pipes import Note
    from container.pipe_dataset.native import NativeReader
    from container.pipe_dataset.stream import StreamReader

    Reader: TypeAlias = NativeReader | StreamReader

#: Maximum size, in bytes, of objects that are read again to find a damaged record.
_READ_AGAIN = 4 << 30
_CHUNK = 4 << 20
_POSITION = re.compile(r"corrupted record at (\d+)")

#: Readers that TensorFlow's errors may be about; the last is the newest.
RECENT: deque[Reader] = deque(maxlen=8)


class PipeError(Exception):
    """Raised if a stream cannot be read. The message names the stream, the reason and the remedy, in one line."""


#: The name of this error in SageMaker's package.
PipeModeDatasetException = PipeError


def of_agent(reader: Reader) -> PipeError | None:
    """Return the host agent's error if the stream ended early. Return None if the stream is complete, or the agent
    writes no notes.
    """
    notes = reader.notes.all()
    error = next((note.error for note in notes if note.error), "")
    if not error and (not reader.notes.there or any(note.done for note in notes)):
        return None
    error = error or "the stream was cut off: fleetfit's process that sends the data (the host agent) has ended."
    return PipeError(f"channel {reader.channel!r}, epoch {reader.epoch}: {error}")


def at(reader: Reader, offset: int, record: int, cause: str, *, framed: bool = False) -> Exception:
    """Return the error for a damaged record of the stream.

    Args:
        reader: The reader of the stream.
        offset: The offset in the stream at which the record begins, in bytes.
        record: The number of records before the damaged record.
        cause: A description of the damage.
        framed: Whether the record's beginning and end are known to be correct.
    """
    notes = [note for note in reader.notes.all() if note.uri and note.at <= offset]
    if not notes:
        return PipeError(
            f"channel {reader.channel!r}, epoch {reader.epoch}: record {record + 1:,}, at byte {offset:,} of the "
            f"stream: {cause}. The object with this byte is damaged, or not in the format that record_format "
            "names. fleetfit cannot tell which object this is, because the stream does not mark where an object begins."
        )
    last = notes[-1]
    if not last.plain:
        number = _number(last, record)
        place = _place_of(reader, last.uri, number)
        return DamagedRecordError(
            reader.channel, last.uri, cause, offset=place, record=None if number is None else number + 1
        )
    # If a record is cut off at the end of an object, the bytes of the next object follow it. The fault is then noticed
    # only in the next object.
    candidates = [] if framed else [(before, last.at - before.at) for before in notes[-2:-1]] + [(last, None)]
    for note, size in candidates:
        found = _first_fault(reader, note.uri, size)
        if found is not None:
            place, number, why = found
            return DamagedRecordError(reader.channel, note.uri, why, offset=place, record=number + 1)
    number = None
    with contextlib.suppress(Exception):
        number = _walk(reader, last.uri, offset=offset - last.at)[1] + 1
    return DamagedRecordError(reader.channel, last.uri, cause, offset=offset - last.at, record=number)


def explain(message: str) -> Exception | None:
    """Return the error for the record that TensorFlow's message "corrupted record at …" is about.

    Return None if the record can no longer be found.
    """
    match = _POSITION.search(message)
    if match is None:
        return None
    position = int(match[1]) - tfrecord.HEADER_SIZE  # TensorFlow reports the offset of the record's data
    possible: list[tuple[Reader, int, int]] = []
    for reader in reversed(RECENT):
        found = reader.find(position)
        if found is not None:
            possible.append((reader, *found))
    # TensorFlow does not name the reader. If several records are possible, read them again from their objects to find
    # the damaged one.
    damaged = [where for where in possible if _is_damaged(*where)] if len(possible) > 1 else []
    for reader, offset, record in [*damaged, *possible][:1]:
        return at(reader, offset, record, "its data is damaged (the checksum is wrong)", framed=True)
    return None


def _is_damaged(reader: Reader, offset: int, record: int) -> bool:
    """Return whether a record is damaged. The record is read again from its object.

    Return False if the record cannot be read.
    """
    with contextlib.suppress(Exception):  # the object may have been deleted, or may not be readable here
        from container.agent import sources

        note = [note for note in reader.notes.all() if note.uri and note.at <= offset][-1]
        place = offset - note.at if note.plain else _place_of(reader, note.uri, _number(note, record))
        if place is not None:
            with sources.open(sources.describe(note.uri), place) as stream:
                head = stream.read(tfrecord.HEADER_SIZE)
                size = reader.framing.needed(head, 0, len(head))
                return not tfrecord.is_whole(head + stream.read(size - len(head)))
    return False


def _number(note: Note, record: int) -> int | None:
    """Return the record's number in its object, from 0. Return None if the agent's notes do not count records."""
    return None if note.records is None else note.first + (record - note.records) * note.step


def _first_fault(reader: Reader, uri: str, size: int | None) -> tuple[int, int, str] | None:
    """Return the offset, the number and the fault of an object's first faulty record. Return None if no faulty record
    can be found.
    """
    found: tuple[int, int, str] | None = None
    with contextlib.suppress(Exception):  # the object may have been deleted, or may not be readable here
        found = _scan(reader, uri, size)
    return found


def _scan(reader: Reader, uri: str, size: int | None) -> tuple[int, int, str] | None:
    from container.agent import sources

    item = sources.describe(uri)
    if item.size > _READ_AGAIN or (size is not None and size != item.size):
        return None
    with sources.open(item) as stream:
        try:
            for _ in formats.blocks(reader.record_format, iter(lambda: stream.read(_CHUNK), b"")):
                pass
        except FramingError as error:
            return error.position, error.count, error.cause
    return None


def _place_of(reader: Reader, uri: str, number: int | None) -> int | None:
    """Return the offset of a record in its object. Return None if the record cannot be found.

    Args:
        reader: The reader of the stream.
        uri: The URI of the object.
        number: The number of the record in the object, from 0. None if unknown.
    """
    if number is None:
        return None
    with contextlib.suppress(Exception):
        place, count = _walk(reader, uri, number=number)
        if count == number:
            return place
    return None


def _walk(reader: Reader, uri: str, *, offset: float = math.inf, number: float = math.inf) -> tuple[int, int]:
    """Read an object's records until an offset or a number of records is reached.

    Returns:
        The offset of the record that was reached, and the number of records before that record.
    """
    from container.agent import sources

    framing = formats.framing(reader.record_format)
    base = records = 0
    rest = b""
    with sources.open(sources.describe(uri)) as stream:
        while chunk := stream.read(_CHUNK):
            data = rest + chunk
            ends: list[int] = []
            framing.hop(data, 0, len(data), ends)
            begin = 0
            for end in ends:
                if base + begin >= offset or records >= number:
                    return base + begin, records
                begin = end
                records += 1
            base += begin
            rest = data[begin:]
    return base, records
