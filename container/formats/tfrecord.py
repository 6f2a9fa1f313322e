"""Read and write TFRecord: ``length (8 bytes) | masked crc32c of length (4) | data | masked crc32c of data (4)``.

The checksum of the length is verified for every record. The checksum of the data is not verified, because TensorFlow's
own reader verifies it in native code.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator

from container.formats.base import Buffer, FramingError

HEADER_SIZE = 12
_FOOTER_SIZE = 4
_AROUND = HEADER_SIZE + _FOOTER_SIZE

_MASK_DELTA = 0xA282EAD8
_POLYNOMIAL = 0x82F63B78  # Castagnoli's polynomial, bits reversed

#: Maximum number of lengths whose headers are cached; a dataset rarely has more.
_REMEMBERED = 1 << 16
#: After this many records of the same length in a row, the following headers are compared all at once.
_ROW = 16


def _make_table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return tuple(table)


_TABLE = _make_table()


def crc32c(data: bytes) -> int:
    """Return the CRC-32C checksum of the data.

    This slow function is meant for a few bytes, or for a single record that may be damaged.
    """
    crc = 0xFFFFFFFF
    table = _TABLE
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def masked_crc32c(data: bytes) -> int:
    """Return the masked CRC-32C checksum that the format TFRecord uses."""
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def header(length: int) -> bytes:
    """Return the header of a record with ``length`` bytes of data."""
    packed = struct.pack("<Q", length)
    return packed + struct.pack("<I", masked_crc32c(packed))


def is_header(head: bytes) -> bool:
    """Return whether bytes can be the header of a TFRecord."""
    return len(head) == HEADER_SIZE and struct.unpack_from("<I", head, 8)[0] == masked_crc32c(head[:8])


def encode(data: bytes) -> bytes:
    """Encode one record. The function is slow, and is meant for tests and small amounts of data."""
    return header(len(data)) + data + struct.pack("<I", masked_crc32c(data))


def content(record: bytes) -> bytes:
    """Return the data of a complete record."""
    return record[HEADER_SIZE:-_FOOTER_SIZE]


def is_whole(record: bytes) -> bool:
    """Return whether a record's data matches its checksum. The function is slow."""
    return bool(struct.unpack("<I", record[-_FOOTER_SIZE:])[0] == masked_crc32c(content(record)))


def read(path: str | os.PathLike[str]) -> Iterator[bytes]:
    """Yield the contents of a file's records. The checksums of the contents are not verified.

    Args:
        path: The path of the file.

    Raises:
        ValueError: the file does not consist of complete TFRecords. The message names the position of the first invalid
            record.
    """
    with open(path, "rb") as file:
        position = 0
        while head := file.read(HEADER_SIZE):
            if not is_header(head):
                raise ValueError(f"{os.fspath(path)}: no TFRecord begins at byte {position:,}.")
            size = int(struct.unpack_from("<Q", head)[0])
            data = file.read(size + _FOOTER_SIZE)
            if len(data) < size + _FOOTER_SIZE:
                raise ValueError(f"{os.fspath(path)}: the record at byte {position:,} is cut off.")
            position += size + _AROUND
            yield data[:-_FOOTER_SIZE]


class TFRecordFraming:
    """The framing of TFRecord. See :class:`container.formats.base.Framing`."""

    def __init__(self) -> None:
        # Validated headers -> total size of the record. One lookup in a dict per record is several times faster than
        # unpacking and validating the header.
        self._known: dict[bytes, int] = {}

    def hop(self, data: Buffer, start: int, end: int, ends: list[int] | None = None) -> tuple[int, int]:
        """Find the ends of complete TFRecords (see :class:`container.formats.base.Framing`)."""
        known = self._known
        position, count, row, before = start, 0, 0, 0
        while position + HEADER_SIZE <= end:
            head = data[position : position + HEADER_SIZE]
            size = known.get(head) or self._learn(head, position, count)
            if position + size > end:
                break
            position += size
            count += 1
            if ends is not None:
                ends.append(position)
            if size != before:
                before, row = size, 0
                continue
            row += 1
            if row == _ROW:
                more = _equal(data, position, end, head, size)
                if ends is not None:
                    ends.extend(range(position + size, position + more * size + 1, size))
                position += more * size
                count += more
                row = 0
        return position, count

    def needed(self, data: Buffer, start: int, end: int) -> int:
        """Return the minimum size of an incomplete TFRecord (see :class:`container.formats.base.Framing`)."""
        head = data[start : start + HEADER_SIZE]
        if end - start < HEADER_SIZE:
            return HEADER_SIZE
        return self._known.get(head) or self._learn(head, start, 0)

    def last(self, data: Buffer, start: int, end: int) -> int:
        """Raise an error for an incomplete record at the end of the stream.

        Raises:
            FramingError: always, because a complete TFRecord needs no terminator.
        """
        there, wanted = end - start, self.needed(data, start, end)
        raise FramingError(
            start, 0, f"it is cut off: it has {there:,} of {'at least ' * (there < HEADER_SIZE)}{wanted:,} bytes"
        )

    def payload(self, data: Buffer, start: int, end: int) -> bytes:
        """Return the content of one complete TFRecord. The checksum of the content is not verified."""
        return data[start + HEADER_SIZE : end - _FOOTER_SIZE]

    def _learn(self, head: bytes, position: int, count: int) -> int:
        if not is_header(head):
            raise FramingError(
                position, count, "it is not a valid TFRecord (the checksum of the record's length is wrong)"
            )
        size = int(struct.unpack_from("<Q", head)[0]) + _AROUND
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        self._known[head] = size
        return size


def _equal(data: Buffer, start: int, end: int, head: bytes, size: int) -> int:
    """Return the number of successive complete records from ``start`` on that have the header ``head``. If there are
    fewer than ``_ROW`` such records, the result may be 0.

    The function is fast because it uses slices with a step. Each slice compares one byte of the header in all records
    at once.

    Args:
        data: The buffer.
        start: Position of the first record.
        end: Position at which the filled part of the buffer ends.
        head: The header with which the records' headers are compared.
        size: Size of each record in bytes.
    """
    whole = (end - start) // size
    for place in range(HEADER_SIZE):
        if whole < _ROW:
            return 0
        column = data[start + place : start + (whole - 1) * size + place + 1 : size]
        if place == 0 and column[:_ROW].count(head[:1]) < _ROW:
            return 0
        whole = len(column) - len(column.lstrip(head[place : place + 1]))
    return whole
