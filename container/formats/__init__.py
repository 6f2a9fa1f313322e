"""The record formats of streams: TFRecord, RecordIO and lines of text, found piece by piece.

A *framing* looks at a buffer that holds a part of a stream and says where records end in it. It never copies, so that
whoever feeds or reads a stream moves bytes in large pieces and still knows every record. What it cannot accept is a
:class:`FramingError`, with the place of the record that is at fault.
"""

from __future__ import annotations

import enum

from container.formats.base import Buffer, Framing, FramingError, RecordError

__all__ = ["Buffer", "Framing", "FramingError", "RecordError", "RecordFormat", "framing", "recognise"]


class RecordFormat(enum.Enum):
    """A record format, by the name that ``PipeModeDataset`` knows it by."""

    TFRECORD = "TFRecord"
    RECORDIO = "RecordIO"
    TEXT_LINE = "TextLine"


def framing(record_format: RecordFormat) -> Framing:
    """A framing for one stream."""
    from container.formats import recordio, textline, tfrecord

    kinds: dict[RecordFormat, type[Framing]] = {
        RecordFormat.TFRECORD: tfrecord.TFRecordFraming,
        RecordFormat.RECORDIO: recordio.RecordIOFraming,
        RecordFormat.TEXT_LINE: textline.TextLineFraming,
    }
    return kinds[record_format]()


def recognise(head: bytes) -> RecordFormat | None:
    """The format of an object, from its first bytes; None for what is in none of them (pictures, for example).

    Args:
        head: At least its first 4,096 bytes, or all of a shorter one.
    """
    from container.formats import recordio, tfrecord

    if tfrecord.is_header(head[: tfrecord.HEADER_SIZE]):
        return RecordFormat.TFRECORD
    if recordio.is_header(head[: recordio.HEADER_SIZE]):
        return RecordFormat.RECORDIO
    if b"\0" in head:
        return None
    return RecordFormat.TEXT_LINE
