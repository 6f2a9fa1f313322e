"""What all framings have in common."""

from __future__ import annotations

import mmap
from typing import Protocol, TypeAlias

#: What a framing looks into: something whose slices are ``bytes``.
Buffer: TypeAlias = "bytes | mmap.mmap"


class FramingError(ValueError):
    """What is in a buffer is no record of the format.

    Attributes:
        position: Where in the buffer the record begins.
        count: How many whole records came before it in the same call.
        cause: What is wrong with it.
    """

    def __init__(self, position: int, count: int, cause: str) -> None:
        super().__init__(f"at {position:,}, after {count:,} records: {cause}")
        self.position = position
        self.count = count
        self.cause = cause


class RecordError(Exception):
    """A record of a channel's object is damaged; one line that names object, offset and record number.

    Attributes:
        uri: The object.
        offset: The byte of the object at which the record begins; None if unknown.
        record: Its number in the object, from 1; None if unknown.
    """

    def __init__(self, channel: str, uri: str, cause: str, *, offset: int | None, record: int | None) -> None:
        what = f"record {record:,}" if record is not None else "a record"
        where = f" at byte {offset:,}" if offset is not None else ""
        super().__init__(f"channel {channel!r}: {uri!r}: {what}{where}: {cause.rstrip('.')}.")
        self.uri = uri
        self.offset = offset
        self.record = record


class Framing(Protocol):
    """Finds the ends of records. It remembers nothing of a stream: each call begins where a record begins."""

    def hop(self, data: Buffer, start: int, end: int, ends: list[int] | None = None) -> tuple[int, int]:
        """Go from record to record.

        Args:
            data: The buffer.
            start: Where in it a record begins.
            end: How far it is filled.
            ends: Takes the end of each whole record, if it is given.

        Returns:
            The end of the last whole record (``start`` if there is none), and how many whole records there are.

        Raises:
            FramingError: something there is no record. ``ends`` has got those before it.
        """

    def needed(self, data: Buffer, start: int, end: int) -> int:
        """How many bytes the record at ``start``, which is not whole, has at least."""

    def last(self, data: Buffer, start: int, end: int) -> int:
        """The stream ends at ``end``, and what begins at ``start`` has no end of its own: where it ends.

        Raises:
            FramingError: it is cut off.
        """

    def payload(self, data: Buffer, start: int, end: int) -> bytes:
        """The content of one whole record."""
