"""Define the interface and the errors that all framings share. A framing finds the ends of records in a buffer."""

from __future__ import annotations

import mmap
from typing import Protocol, TypeAlias

#: The buffer that a framing reads: an object whose slices are ``bytes``.
Buffer: TypeAlias = "bytes | mmap.mmap"


class FramingError(ValueError):
    """Raised if a part of a buffer is not a valid record of the format.

    Attributes:
        position: Position in the buffer at which the invalid record begins.
        count: Number of complete records that the same call has found before the invalid record.
        cause: Description of the fault.
    """

    def __init__(self, position: int, count: int, cause: str) -> None:
        super().__init__(f"at {position:,}, after {count:,} records: {cause}")
        self.position = position
        self.count = count
        self.cause = cause


class DamagedRecordError(Exception):
    """Raised if a record of a channel's object is damaged. The message is one line with the object, the offset and the
    record's number.

    Attributes:
        uri: The URI of the object.
        offset: The offset in the object, in bytes, at which the record begins. None if unknown.
        record: The record's number in the object, from 1. None if unknown.
    """

    def __init__(self, channel: str, uri: str, cause: str, *, offset: int | None, record: int | None) -> None:
        what = f"record {record:,}" if record is not None else "a record"
        where = f" at byte {offset:,}" if offset is not None else ""
        super().__init__(f"channel {channel!r}: {uri!r}: {what}{where}: {cause.rstrip('.')}.")
        self.uri = uri
        self.offset = offset
        self.record = record


class Framing(Protocol):
    """The interface of a framing, which finds the ends of records.

    A framing does not remember its position in a stream. In each call, the data must begin where a record begins.
    """

    def hop(self, data: Buffer, start: int, end: int, ends: list[int] | None = None) -> tuple[int, int]:
        """Find the complete records in a buffer.

        Args:
            data: The buffer.
            start: Position at which a record begins.
            end: Position at which the filled part of the buffer ends.
            ends: A list to which the end of each complete record is appended, or None.

        Returns:
            The end of the last complete record (``start`` if there is none), and the number of complete records.

        Raises:
            FramingError: a part of the buffer is not a valid record. ``ends`` contains the ends of the records before
                this part.
        """

    def needed(self, data: Buffer, start: int, end: int) -> int:
        """Return the minimum size, in bytes, of an incomplete record that begins at ``start``.

        The size is computed from the part of the record before ``end``, which is the only part in the buffer.

        Raises:
            FramingError: this part is not the beginning of a valid record.
        """

    def last(self, data: Buffer, start: int, end: int) -> int:
        """Return the end of the last record, which begins at ``start``. The stream ends at ``end``, and the record
        lacks a terminator.

        Raises:
            FramingError: the record is incomplete.
        """

    def payload(self, data: Buffer, start: int, end: int) -> bytes:
        """Return the content of one complete record."""
