"""Explain faults of a stream by the object, the offset and the record."""

from __future__ import annotations

import contextlib
import math
import re
from collections import deque
from typing import TYPE_CHECKING, TypeAlias

from container import formats
from container.formats import FramingError, RecordError, tfrecord

if TYPE_CHECKING:
    from container.contract.pipes import Note
    from container.pipe_dataset.native import NativeReader
    from container.pipe_dataset.stream import StreamReader

    Reader: TypeAlias = NativeReader | StreamReader

#: Objects up to this size are read again, to find where a damaged record is.
_READ_AGAIN = 4 << 30
_CHUNK = 4 << 20
_POSITION = re.compile(r"corrupted record at (\d+)")

#: Readers that TensorFlow's errors may be about, the newest last.
RECENT: deque[Reader] = deque(maxlen=8)


class PipeError(Exception):
    """A stream cannot be read; one line that says which, why, and the remedy."""


def of_agent(reader: Reader) -> PipeError | None:
    """Return why the host agent ended the stream, if it did not reach its end."""
    notes = reader.notes.all()
    error = next((note.error for note in notes if note.error), "")
    if not error and (not reader.notes.there or any(note.done for note in notes)):
        return None
    error = error or "the stream was cut off: fleetfit's process that sends the data (the host agent) has ended."
    return PipeError(f"channel {reader.channel!r}, epoch {reader.epoch}: {error}")


def at(reader: Reader, offset: int, record: int, cause: str, *, framed: bool = False) -> Exception:
    """Return the error for a record of the stream.

    Args:
        reader: The stream.
        offset: Where in it the record begins.
        record: How many records come before it.
        cause: What is wrong with it.
        framed: Whether it begins and ends as it should.
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
        return RecordError(reader.channel, last.uri, cause, offset=place, record=None if number is None else number + 1)
    # A record that is cut off at the end of an object takes bytes of the next one, in which the fault is noticed.
    candidates = [] if framed else [(before, last.at - before.at) for before in notes[-2:-1]] + [(last, None)]
    for note, size in candidates:
        found = _first_fault(reader, note.uri, size)
        if found is not None:
            place, number, why = found
            return RecordError(reader.channel, note.uri, why, offset=place, record=number + 1)
    number = None
    with contextlib.suppress(Exception):
        number = _count_until(reader, last.uri, offset - last.at) + 1
    return RecordError(reader.channel, last.uri, cause, offset=offset - last.at, record=number)


def explain(message: str) -> Exception | None:
    """Find the record behind TensorFlow's "corrupted record at …"; None if it can no longer be found."""
    match = _POSITION.search(message)
    if match is None:
        return None
    position = int(match[1]) - tfrecord.HEADER_SIZE  # TensorFlow tells where the data begins
    possible: list[tuple[Reader, int, int]] = []
    for reader in reversed(RECENT):
        found = reader.find(position)
        if found is not None:
            possible.append((reader, *found))
    # TensorFlow does not say which of them; with one it is clear, else the objects tell.
    damaged = [where for where in possible if _is_damaged(*where)] if len(possible) > 1 else []
    for reader, offset, record in [*damaged, *possible][:1]:
        return at(reader, offset, record, "its data is damaged (the checksum is wrong)", framed=True)
    return None


def _is_damaged(reader: Reader, offset: int, record: int) -> bool:
    """Read a record again, from the object if its bytes are in the stream as they are, and see."""
    with contextlib.suppress(Exception):  # it may be gone, or unreadable here
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
    """Return the record's number in its object, from 0, where the agent deals or packs."""
    return None if note.records is None else note.first + (record - note.records) * note.step


def _first_fault(reader: Reader, uri: str, size: int | None) -> tuple[int, int, str] | None:
    """Read an object by itself: the offset and number of its first faulty record, and what is wrong with it."""
    found: tuple[int, int, str] | None = None
    with contextlib.suppress(Exception):  # it may be gone, or unreadable here: then the stream's word has to do
        found = _scan(reader, uri, size)
    return found


def _scan(reader: Reader, uri: str, size: int | None) -> tuple[int, int, str] | None:
    from container.agent import sources

    item = sources.describe(uri)
    if item.size > _READ_AGAIN or (size is not None and size != item.size):
        return None
    framing = formats.framing(reader.record_format)
    offset = records = 0
    rest = b""
    with sources.open(item) as stream:
        while True:
            chunk = stream.read(_CHUNK)
            data = rest + chunk
            try:
                if not chunk:
                    if data:
                        framing.last(data, 0, len(data))
                    return None
                whole, count = framing.hop(data, 0, len(data))
            except FramingError as error:
                return offset + error.position, records + error.count, error.cause
            offset += whole
            records += count
            rest = data[whole:]


def _count_until(reader: Reader, uri: str, offset: int) -> int:
    """Return how many records of an object begin before an offset."""
    return _walk(reader, uri, offset=offset)[1]


def _place_of(reader: Reader, uri: str, number: int | None) -> int | None:
    """Return the offset of an object's record, from 0, if the object is not packed."""
    if number is None:
        return None
    with contextlib.suppress(Exception):
        place, count = _walk(reader, uri, number=number)
        if count == number:
            return place
    return None


def _walk(reader: Reader, uri: str, *, offset: float = math.inf, number: float = math.inf) -> tuple[int, int]:
    """Go through an object's records to an offset or a number; return the place, and how many came before it."""
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
