"""Find the records in streams of TFRecord, RecordIO or lines of text. A stream is processed in blocks.

A *framing* finds the ends of records in a buffer that contains a block of a stream. A framing does not copy data.
Therefore writers and readers of a stream can transfer large blocks and still know where each record ends. If bytes are
not a valid record, a framing raises a :class:`FramingError` with the position of these bytes.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator

from container.formats.base import Buffer, DamagedRecordError, Framing, FramingError

__all__ = ["Buffer", "DamagedRecordError", "Framing", "FramingError", "RecordFormat", "blocks", "framing", "recognise"]


class RecordFormat(enum.Enum):
    """A record format. The values are the names that ``PipeModeDataset`` uses for the formats."""

    TFRECORD = "TFRecord"
    RECORDIO = "RecordIO"
    TEXT_LINE = "TextLine"


def framing(record_format: RecordFormat) -> Framing:
    """Return a new framing for one stream."""
    from container.formats import recordio, textline, tfrecord

    kinds: dict[RecordFormat, type[Framing]] = {
        RecordFormat.TFRECORD: tfrecord.TFRecordFraming,
        RecordFormat.RECORDIO: recordio.RecordIOFraming,
        RecordFormat.TEXT_LINE: textline.TextLineFraming,
    }
    return kinds[record_format]()


def blocks(record_format: RecordFormat, pieces: Iterable[bytes]) -> Iterator[tuple[bytes, list[int]]]:
    """Divide the bytes of an object into blocks that begin with a record.

    Args:
        record_format: The format of the records.
        pieces: The bytes of the object, in pieces of any size.

    Yields:
        A block, and the positions in the block at which complete records end. The bytes after the last of these
        positions are also at the beginning of the next block. If the last line of a text lacks its terminator, the
        terminator is added.

    Raises:
        FramingError: a record is damaged. Its position and its number are counted from the object's beginning.
    """
    finding = framing(record_format)
    offset = records = 0
    rest = b""
    try:
        for piece in pieces:
            data = rest + piece if rest else piece
            ends: list[int] = []
            finding.hop(data, 0, len(data), ends)
            yield data, ends
            whole = ends[-1] if ends else 0
            offset, records, rest = offset + whole, records + len(ends), data[whole:]
        if rest:
            finding.last(rest, 0, len(rest))
            yield rest + b"\n", [len(rest) + 1]
    except FramingError as error:
        raise FramingError(offset + error.position, records + error.count, error.cause) from None


def recognise(head: bytes) -> RecordFormat | None:
    """Determine the format of an object from its first bytes. Return None for any other format, such as that of an
    image.

    Args:
        head: At least the first 4,096 bytes of the object. If the object is shorter, all of its bytes.
    """
    from container.formats import recordio, tfrecord

    if tfrecord.is_header(head[: tfrecord.HEADER_SIZE]):
        return RecordFormat.TFRECORD
    if recordio.is_header(head[: recordio.HEADER_SIZE]):
        return RecordFormat.RECORDIO
    if b"\0" in head:
        return None
    return RecordFormat.TEXT_LINE
