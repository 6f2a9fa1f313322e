"""Objects that are written in parts."""

from __future__ import annotations

import os

import pytest
from s3_server import Bucket, Faults

from container.agent.s3.upload import Upload
from container.agent.sources import SourceError


def write(uri: str, content: bytes, piece: int = 70_001) -> None:
    with Upload(uri, part=100_000) as target:
        for start in range(0, len(content), piece):
            target.write(content[start : start + piece])


@pytest.mark.parametrize("size", [0, 99_999, 100_000, 1_234_567])
def test_what_is_written_is_there(s3: Bucket, size: int) -> None:
    content = os.urandom(size)
    write(s3.uri("a/b"), content)
    assert s3.get("a/b") == content


def test_parts_are_sent_again(s3: Bucket, faults: Faults) -> None:
    content = os.urandom(1_000_000)
    faults.unavailable(times=3, method="PUT", key="partNumber")
    faults.cut(times=1, method="POST", key="uploads")
    faults.cut(times=1, method="POST", key="uploadId")  # it has succeeded, and its answer is lost
    write(s3.uri("x"), content)
    assert faults.left == 0
    assert s3.get("x") == content


def test_nothing_appears_of_an_upload_that_fails(s3: Bucket, faults: Faults) -> None:
    s3.put("x", b"before")
    faults.unavailable(times=100, method="PUT", key="partNumber=3", status=403)
    with pytest.raises(SourceError, match="denies access"):
        write(s3.uri("x"), os.urandom(1_000_000))
    assert s3.get("x") == b"before"
    assert s3.names() == ["x"]
    assert faults.requests("DELETE", "uploadId") != []


def test_nothing_appears_when_the_block_is_left(s3: Bucket) -> None:
    with pytest.raises(ZeroDivisionError), Upload(s3.uri("x"), part=1000) as target:
        target.write(b"x" * 5000)
        raise ZeroDivisionError
    assert s3.names() == []


def test_memory_is_bounded(s3: Bucket) -> None:
    with Upload(s3.uri("x"), part=100_000) as target:
        for _ in range(100):
            target.write(b"x" * 50_000)
            assert len(target._buffer) < 100_000
            assert len(target._under_way) <= 2
    assert len(s3.get("x")) == 5_000_000
