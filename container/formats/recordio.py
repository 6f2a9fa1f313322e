"""Read and write the format RecordIO as SageMaker's Pipe mode uses it.

The format is ``magic (4 bytes) | flag (3 bits) and length (29 bits) | data | padding``. A record may have several
parts. The flag is 1 for the first part, 2 for a middle part, and 3 for the last part. The flag is 0 if a record has
only one part. Each part is padded to a multiple of four bytes. As in SageMaker's reader, the parts of a record are
joined without any bytes in between. MXNet's writer uses a different rule: it divides the data at magic numbers, and
removes these numbers.
"""

from __future__ import annotations

import struct

from container.formats.base import Buffer, FramingError

MAGIC = 0xCED7230A
HEADER_SIZE = 8
#: Maximum size of a part's data in bytes.
PART_LIMIT = (1 << 29) - 1

_MAGIC_BYTES = struct.pack("<I", MAGIC)
_WHOLE, _BEGINS, _CONTINUES, _ENDS = range(4)
_REMEMBERED = 1 << 16


def is_header(head: bytes) -> bool:
    """Return whether bytes can be the header of the first part of a record."""
    return len(head) == HEADER_SIZE and head[:4] == _MAGIC_BYTES and head[7] >> 5 in (_WHOLE, _BEGINS)


def header(length: int, flag: int = _WHOLE) -> bytes:
    """Return the header of a part with ``length`` bytes of data.

    Raises:
        ValueError: the length exceeds the maximum of a part.
    """
    if not 0 <= length <= PART_LIMIT:
        raise ValueError(f"a part of a RecordIO record has at most {PART_LIMIT:,} bytes; got {length:,}.")
    return _MAGIC_BYTES + struct.pack("<I", flag << 29 | length)


def padding(length: int) -> bytes:
    """Return the padding that follows ``length`` bytes of data."""
    return bytes(-length % 4)


def encode(data: bytes, limit: int = PART_LIMIT) -> bytes:
    """Encode one record.

    Args:
        data: The content of the record.
        limit: Maximum size of a part's data in bytes.
    """
    limit -= limit % 4  # so that only the last part has padding
    pieces = []
    for place in range(0, max(len(data), 1), limit):
        part = data[place : place + limit]
        is_last = place + limit >= len(data)
        flag = (_ENDS if is_last else _CONTINUES) if place else (_WHOLE if is_last else _BEGINS)
        pieces += [header(len(part), flag), part, padding(len(part))]
    return b"".join(pieces)


class RecordIOFraming:
    """The framing of RecordIO. See :class:`container.formats.base.Framing`."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[int, int]] = {}  # validated headers -> total size of the part, flag

    def hop(self, data: Buffer, start: int, end: int, ends: list[int] | None = None) -> tuple[int, int]:
        """Find the ends of complete RecordIO records (see :class:`container.formats.base.Framing`)."""
        begin = position = start
        count = 0
        within = False
        known = self._known
        while position + HEADER_SIZE <= end:
            head = data[position : position + HEADER_SIZE]
            size, flag = known.get(head) or self._learn(head, begin, count)
            if within != (flag in (_CONTINUES, _ENDS)):
                raise FramingError(begin, count, _out_of_order(within, flag))
            if position + size > end:
                break
            position += size
            within = flag in (_BEGINS, _CONTINUES)
            if not within:
                begin = position
                count += 1
                if ends is not None:
                    ends.append(position)
        return begin, count

    def needed(self, data: Buffer, start: int, end: int) -> int:
        """Return the minimum size of an incomplete RecordIO record (see :class:`container.formats.base.Framing`)."""
        position = start
        while position + HEADER_SIZE <= end:
            size, flag = self._learn(data[position : position + HEADER_SIZE], start, 0)
            position += size
            if flag in (_WHOLE, _ENDS):
                return position - start
        return position + HEADER_SIZE - start

    def last(self, data: Buffer, start: int, end: int) -> int:
        """Raise an error for an incomplete record at the end of the stream.

        Raises:
            FramingError: always, because a complete RecordIO record needs no terminator.
        """
        raise FramingError(
            start, 0, f"it is cut off: it has {end - start:,} of at least {self.needed(data, start, end):,} bytes"
        )

    def payload(self, data: Buffer, start: int, end: int) -> bytes:
        """Return the content of one complete RecordIO record. The parts of the record are joined."""
        (word,) = struct.unpack_from("<I", data, start + 4)
        length = word & PART_LIMIT
        if word >> 29 == _WHOLE:
            return data[start + HEADER_SIZE : start + HEADER_SIZE + length]
        pieces, position = [], start
        while position < end:
            length = struct.unpack_from("<I", data, position + 4)[0] & PART_LIMIT
            position += HEADER_SIZE
            pieces.append(data[position : position + length])
            position += length + -length % 4
        return b"".join(pieces)

    def _learn(self, head: bytes, begin: int, count: int) -> tuple[int, int]:
        magic, word = struct.unpack("<II", head)
        if magic != MAGIC:
            raise FramingError(
                begin,
                count,
                f"it is not a valid RecordIO record: it begins with {magic:#010x} instead of {MAGIC:#010x}",
            )
        length, flag = word & PART_LIMIT, word >> 29
        if flag > _ENDS:
            raise FramingError(begin, count, f"flag {flag} is not valid: RecordIO's flags are 0 to 3")
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        found = self._known[head] = (HEADER_SIZE + length + -length % 4, flag)
        return found


def _out_of_order(within: bool, flag: int) -> str:
    if within:
        return f"a record of several parts is not continued: a part with flag {flag} follows"
    return f"a part with flag {flag} continues a record that has not begun"
