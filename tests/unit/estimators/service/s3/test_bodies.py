"""A request's content in all the ways in which it comes."""

from __future__ import annotations

import io

import pytest

from estimators.service.errors import ServiceError
from estimators.service.s3.bodies import Incoming

REST = b"GET / HTTP/1.1\r\n"


def read(sent: bytes, headers: dict[str, str], aws: bool = False, size: int = 3) -> bytes:
    stream = io.BufferedReader(io.BytesIO(sent + REST))
    body = Incoming(stream, headers, lambda: None)
    body.begin("STREAMING-AWS4-HMAC-SHA256-PAYLOAD" if aws else "0" * 64)
    found = b""
    while data := body.read(size):
        found += data
    assert body.drain(1 << 20)
    assert stream.read() == REST  # the next request is untouched
    return found


SIGNED = b"5;chunk-signature=ab\r\nhello\r\n3;chunk-signature=cd\r\n, w\r\n0;chunk-signature=ef\r\n"
TRAILERS = b"x-amz-checksum-crc32:AAAAAA==\r\nx-amz-trailer-signature:12\r\n\r\n"


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_what_comes_is_what_was_sent(size: int) -> None:
    assert read(b"hello", {"content-length": "5"}, size=size) == b"hello"
    assert read(b"", {}, size=size) == b""
    assert read(b"5\r\nhello\r\n1\r\n!\r\n0\r\n\r\n", {"transfer-encoding": "chunked"}, size=size) == b"hello!"
    for end in (b"\r\n", TRAILERS):
        coded = SIGNED + end
        assert read(coded, {"content-length": str(len(coded))}, aws=True, size=size) == b"hello, w"
        pieces = [coded[begin : begin + 7] for begin in range(0, len(coded), 7)]
        chunked = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
        assert read(chunked, {"transfer-encoding": "chunked"}, aws=True, size=size) == b"hello, w"


@pytest.mark.parametrize(
    ("sent", "aws"),
    [
        (b"hel", False), (b"5\r\nhello", True), (b"x\r\nhello\r\n", True), (b"-5\r\nhello\r\n", True),
        (b"2\r\nhello\r\n0\r\n\r\n", True), (b"0\r\n" + b"x: y\r\n" * 1000, True),
    ],
)  # fmt: skip
def test_content_that_ends_too_early_is_refused(sent: bytes, aws: bool) -> None:
    length = {"content-length": str(len(sent) if aws else 5)}
    body = Incoming(io.BufferedReader(io.BytesIO(sent)), length, lambda: None)
    body.begin("STREAMING-UNSIGNED-PAYLOAD-TRAILER" if aws else "UNSIGNED-PAYLOAD")
    with pytest.raises(ServiceError) as error:
        while body.read(100):
            pass
    assert error.value.code == "IncompleteBody"


@pytest.mark.parametrize(
    "headers",
    [{"content-length": "x"}, {"content-length": "-1"}, {"transfer-encoding": "gzip"},
     {"transfer-encoding": "chunked", "content-length": "5"}],
)  # fmt: skip
def test_lengths_that_can_be_read_in_two_ways_are_refused(headers: dict[str, str]) -> None:
    with pytest.raises(ServiceError):
        Incoming(io.BufferedReader(io.BytesIO(b"")), headers, lambda: None)


def test_nothing_is_read_behind_chunks_that_are_broken() -> None:
    for sent in (b"-1\r\nhello", b"0\r\n" + b"x: y\r\n" * 100 + b"\r\n"):
        body = Incoming(io.BufferedReader(io.BytesIO(sent)), {"transfer-encoding": "chunked"}, lambda: None)
        with pytest.raises(ServiceError):
            body.read(10)
        assert not body.drain(1 << 20)


def test_content_is_asked_for_when_it_is_wanted() -> None:
    asked: list[int] = []
    headers = {"content-length": "5", "expect": "100-continue"}
    body = Incoming(io.BufferedReader(io.BytesIO(b"hello")), headers, lambda: asked.append(1))
    assert not body.drain(100) and asked == []  # a request that was refused: the client may not send it at all
    assert (body.read(5), asked) == (b"hello", [1])
    assert body.drain(100)
