"""Objects that are written in parts."""

from __future__ import annotations

import os

import pytest
from s3_server import Bucket, Faults

from container.agent.s3.upload import S3Upload
from container.agent.sources import SourceError

#: The smallest that S3 takes.
PART = 5 << 20


def write(uri: str, content: bytes, piece: int = 700_001) -> None:
    with S3Upload(uri, part=PART) as target:
        for start in range(0, len(content), piece):
            target.write(content[start : start + piece])


def test_what_is_written_is_there(s3: Bucket, faults: Faults) -> None:
    """Of any size, also where parts have to be sent again, in bounded memory."""
    for size in (0, PART - 1, PART, 12_345_678):
        content = os.urandom(size)
        write(s3.uri("a/b"), content)
        assert s3.get("a/b") == content, size
    content = os.urandom(2 * PART + 1)
    faults.unavailable(times=3, method="PUT", key="partNumber")
    faults.cut(times=1, method="POST", key="uploads")
    faults.cut(times=1, method="POST", key="uploadId")  # it has succeeded, and its answer is lost
    write(s3.uri("x"), content)
    assert faults.left == 0
    assert s3.get("x") == content
    with S3Upload(s3.uri("x"), part=PART) as target:
        for _ in range(40):
            target.write(b"x" * 1_000_000)
            assert len(target._buffer) < PART and len(target._under_way) <= 2
    assert len(s3.get("x")) == 40_000_000


def test_nothing_appears_of_an_upload_that_fails(s3: Bucket, faults: Faults) -> None:
    s3.put("x", b"before")
    faults.unavailable(times=100, method="PUT", key="partNumber=3", status=403)
    with pytest.raises(SourceError, match="denies access"):
        write(s3.uri("x"), os.urandom(2 * PART + 1))
    assert s3.get("x") == b"before"
    assert faults.requests("DELETE", "uploadId") != []
    faults.clear()
    with pytest.raises(ZeroDivisionError), S3Upload(s3.uri("y"), part=1000) as target:
        target.write(b"x" * 5000)
        raise ZeroDivisionError
    assert s3.names() == ["x"], "an upload whose block was left has appeared"
