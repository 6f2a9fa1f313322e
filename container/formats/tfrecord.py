"""TFRecord: ``length (8 bytes) | masked crc32c of length (4) | data | masked crc32c of data (4)``.

The header's checksum is checked for every record. The data's is not: TensorFlow's own reader does it, in native code.
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
_POLYNOMIAL = 0x82F63B78  # Castagnoli's, bits reversed

#: How many different lengths are remembered; a dataset rarely has more.
_REMEMBERED = 1 << 16
#: After this many records of one length in a row, the rest is compared as a whole.
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
    """CRC-32C; meant for a few bytes, or for one record when something is wrong with it."""
    crc = 0xFFFFFFFF
    table = _TABLE
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def masked_crc32c(data: bytes) -> int:
    """The checksum as the format has it."""
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def header(length: int) -> bytes:
    """The header of a record with ``length`` bytes of data."""
    packed = struct.pack("<Q", length)
    return packed + struct.pack("<I", masked_crc32c(packed))


def is_header(head: bytes) -> bool:
    """Whether a TFRecord can begin so."""
    return len(head) == HEADER_SIZE and struct.unpack_from("<I", head, 8)[0] == masked_crc32c(head[:8])


def encode(data: bytes) -> bytes:
    """One record; slow, for tests and small things."""
    return header(len(data)) + data + struct.pack("<I", masked_crc32c(data))


def content(record: bytes) -> bytes:
    """The data of a whole record."""
    return record[HEADER_SIZE:-_FOOTER_SIZE]


def is_whole(record: bytes) -> bool:
    """Whether a record's data is what its checksum says; slow."""
    return bool(struct.unpack("<I", record[-_FOOTER_SIZE:])[0] == masked_crc32c(content(record)))


def read(path: str | os.PathLike[str]) -> Iterator[bytes]:
    """Yield the contents of a file's records.

    Args:
        path: The file.

    Raises:
        ValueError: it holds something else than whole TFRecords; the message says where.
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
    """See :class:`container.formats.base.Framing`."""

    def __init__(self) -> None:
        # Headers that were checked -> the record's size with everything around it. One look into a dict for each
        # record is several times faster than unpacking and checking.
        self._known: dict[bytes, int] = {}

    def hop(self, data: Buffer, start: int, end: int, ends: list[int] | None = None) -> tuple[int, int]:
        """See :class:`container.formats.base.Framing`."""
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
        """See :class:`container.formats.base.Framing`."""
        head = data[start : start + HEADER_SIZE]
        if end - start < HEADER_SIZE:
            return HEADER_SIZE
        return self._known.get(head) or self._learn(head, start, 0)

    def last(self, data: Buffer, start: int, end: int) -> int:
        """See :class:`container.formats.base.Framing`."""
        there, wanted = end - start, self.needed(data, start, end)
        raise FramingError(
            start, 0, f"it is cut off: it has {there:,} of {'at least ' * (there < HEADER_SIZE)}{wanted:,} bytes"
        )

    def payload(self, data: Buffer, start: int, end: int) -> bytes:
        """See :class:`container.formats.base.Framing`."""
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
    """How many whole records from ``start`` on have this same header, each ``size`` bytes after the one before.

    Slices with a step are made in C: byte by byte of the header, over all records at once.
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
