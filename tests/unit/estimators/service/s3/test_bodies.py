"""A request's content in all the ways in which it comes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from estimators.service.errors import ServiceError
from estimators.service.s3 import bodies

SIGNED = b"5;chunk-signature=ab\r\nhello\r\n3;chunk-signature=cd\r\n, w\r\n0;chunk-signature=ef\r\n"
TRAILERS = b"x-amz-checksum-crc32:AAAAAA==\r\nx-amz-trailer-signature:12\r\n\r\n"


def pieces(content: bytes, size: int) -> Iterator[bytes]:
    """The content in pieces, and empty ones."""
    for begin in range(0, len(content), size):
        yield content[begin : begin + size]
        yield b""


def read(content: bytes, *, in_chunks: bool = False, piece: int = 7, size: int = 3) -> bytes:
    stream = bodies.stream(pieces(content, piece), in_chunks=in_chunks)
    return b"".join(iter(lambda: stream.read(size), b""))


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("piece", [1, 7, 1000])
def test_what_comes_is_what_was_sent(piece: int, size: int) -> None:
    assert read(b"hello", piece=piece, size=size) == b"hello"
    assert read(b"", piece=piece, size=size) == b""
    for end in (b"\r\n", TRAILERS):
        assert read(SIGNED + end, in_chunks=True, piece=piece, size=size) == b"hello, w"


@pytest.mark.parametrize(
    "content",
    [b"5\r\nhello", b"5\r\nhel", b"x\r\nhello\r\n", b"-5\r\nhello\r\n", b"2\r\nhello\r\n0\r\n\r\n", b"",
     b"0\r\n" + b"x: y\r\n" * 1000],
)  # fmt: skip
def test_chunks_that_break_off_are_refused(content: bytes) -> None:
    with pytest.raises(ServiceError) as error:
        read(content, in_chunks=True)
    assert error.value.code == "IncompleteBody"
