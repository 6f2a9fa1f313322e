"""Framings: every record found, wherever the buffer is cut, and what is no record named with its place."""

from __future__ import annotations

import gzip
import io
import random
import struct

import pytest

from container import formats
from container.formats import FramingError, RecordFormat, recordio, tfrecord
from container.formats.gzip import Gunzip, GzipError

SIZES = [0, 1, 3, 4, 5, 200, 200, 200, *[97] * 100, 1_000_000, *[64] * 50, 7, *range(60), *[12] * 40]


def payloads() -> list[bytes]:
    generator = random.Random(4)
    return [generator.randbytes(size).replace(b"\n", b"\r") for size in SIZES]


def encoded(record_format: RecordFormat, records: list[bytes]) -> bytes:
    if record_format is RecordFormat.TFRECORD:
        return b"".join(map(tfrecord.encode, records))
    if record_format is RecordFormat.RECORDIO:
        return b"".join(recordio.encode(record, 64 if number % 3 else 1 << 20) for number, record in enumerate(records))
    return b"".join(record + b"\n" for record in records)


@pytest.mark.parametrize("record_format", list(RecordFormat))
@pytest.mark.parametrize("piece", [13, 1000, 70_001, 1 << 30])
def test_every_record_wherever_the_buffer_is_cut(record_format: RecordFormat, piece: int) -> None:
    records = payloads()
    stream = encoded(record_format, records)
    framing = formats.framing(record_format)
    found: list[bytes] = []
    start = 0
    end = 0
    while end < len(stream):
        end = min(len(stream), max(end + piece, start + (framing.needed(stream, start, end) if end > start else 0)))
        ends: list[int] = []
        last, count = framing.hop(stream, start, end, ends)
        assert (last, count) == framing.hop(stream, start, end)
        assert len(ends) == count and (not ends or ends[-1] == last)
        for stop in ends:
            found.append(framing.payload(stream, start, stop))
            start = stop
    assert start == len(stream)
    assert found == records


def test_the_checksum_is_that_of_tensorflow() -> None:
    """From RFC 3720's appendix, and a header that TensorFlow wrote."""
    assert tfrecord.crc32c(bytes(32)) == 0x8A9136AA
    assert tfrecord.crc32c(bytes(range(32))) == 0x46DD794E
    assert tfrecord.crc32c(b"123456789") == 0xE3069283
    assert tfrecord.header(11) == bytes.fromhex("0b00000000000000") + struct.pack(
        "<I", tfrecord.masked_crc32c(b"\x0b" + bytes(7))
    )


@pytest.mark.parametrize("record_format", [RecordFormat.TFRECORD, RecordFormat.RECORDIO])
@pytest.mark.parametrize("before", [0, 3, 40])
def test_what_is_no_record_is_named_with_its_place(record_format: RecordFormat, before: int) -> None:
    good = encoded(record_format, [b"x" * 9] * before)
    ends: list[int] = []
    with pytest.raises(FramingError) as caught:
        formats.framing(record_format).hop(good + b"no record, certainly not", 0, len(good) + 24, ends)
    assert caught.value.position == len(good)
    assert caught.value.count == before == len(ends)
    assert "is not a valid" in caught.value.cause


def test_parts_out_of_order() -> None:
    framing = recordio.RecordIOFraming()
    whole, begins, continues = (recordio.header(0, flag) for flag in (0, 1, 2))
    with pytest.raises(FramingError, match="has not begun"):
        framing.hop(whole + continues, 0, 16)
    with pytest.raises(FramingError, match="is not continued") as caught:
        framing.hop(whole + begins + whole, 0, 24)
    assert caught.value.position == 8
    with pytest.raises(FramingError, match="flag 7"):
        framing.hop(recordio.header(0, 7), 0, 8)


def test_the_end_of_a_stream() -> None:
    record = tfrecord.encode(b"abc")
    with pytest.raises(FramingError, match="cut off: it has 10 of at least 12"):
        tfrecord.TFRecordFraming().last(record, 0, 10)
    with pytest.raises(FramingError, match="cut off: it has 18 of 19 bytes"):
        tfrecord.TFRecordFraming().last(record, 0, 18)
    lines = formats.framing(RecordFormat.TEXT_LINE)
    assert lines.hop(b"\n\nabc", 0, 5) == (2, 2)
    assert lines.payload(b"\n\nabc", 2, lines.last(b"\n\nabc", 2, 5)) == b"abc"


def test_formats_are_recognised() -> None:
    assert formats.recognise(tfrecord.encode(b"")) is RecordFormat.TFRECORD
    assert formats.recognise(recordio.encode(b"", 4)) is RecordFormat.RECORDIO
    assert formats.recognise(b"1,2,3\n") is RecordFormat.TEXT_LINE
    assert formats.recognise(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR") is None


@pytest.mark.parametrize("size", [1, 1000, 1 << 20])
def test_gzip_of_several_members(size: int) -> None:
    content = [b"a" * 3_000_000, b"", random.Random(1).randbytes(5000)]
    packed = b"".join(gzip.compress(part) for part in content) + bytes(700)
    if size == 1:
        content, packed = content[1:], b"".join(gzip.compress(part) for part in content[1:])
    stream = Gunzip(io.BytesIO(packed))
    found = b"".join(iter(lambda: stream.read(size), b""))
    assert found == b"".join(content)
    assert stream.read(1) == b""


def test_gzip_that_is_damaged() -> None:
    packed = gzip.compress(random.Random(1).randbytes(5000))
    for damaged, cause in (
        (packed[:-1], "cut off"),
        (packed[:100], "cut off"),
        (packed[:-6] + b"xxxxxx", "cannot be unpacked"),
        (b"plain text", "cannot be unpacked"),
        (packed + b"more", "cannot be unpacked"),
    ):
        stream = Gunzip(io.BytesIO(damaged))
        with pytest.raises(GzipError, match=cause):
            while stream.read(1000):
                pass
    assert Gunzip(io.BytesIO(b"")).read(10) == b""
