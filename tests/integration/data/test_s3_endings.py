"""Requests to the S3 server that do not end as they began; the server's log has no tracebacks of them."""

from __future__ import annotations

import http.client
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import s3_server
from botocore.exceptions import ResponseStreamingError
from waiting import until

from estimators.service.s3.keys import OWN
from estimators.service.s3.server import S3Server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[S3Server]:
    """A server with the bucket ``bucket``."""
    (tmp_path / "bucket").mkdir()
    with S3Server(tmp_path) as server:
        yield server
        assert "Traceback" not in server.said()


def test_an_object_that_becomes_shorter_while_it_is_sent_ends_the_download(server: S3Server, tmp_path: Path) -> None:
    path = tmp_path / "bucket" / "k"
    path.touch()
    os.truncate(path, 1 << 30)
    client = s3_server.client_of(server.endpoint, server.key, server.secret)
    content = client.get_object(Bucket="bucket", Key="k")["Body"]
    assert content.read(1) == b"\0"
    os.truncate(path, 1 << 20)
    with pytest.raises(ResponseStreamingError):
        content.read()
    assert client.get_object(Bucket="bucket", Key="k")["ContentLength"] == 1 << 20


def test_an_upload_that_stalls_does_not_hold_up_the_end(server: S3Server, tmp_path: Path) -> None:
    address = s3_server.client_of(server.endpoint, server.key, server.secret).generate_presigned_url(
        "put_object", Params={"Bucket": "bucket", "Key": "k"}
    )
    connection = http.client.HTTPConnection(server.endpoint[len("http://") :])
    connection.putrequest("PUT", address[len(server.endpoint) :])
    connection.putheader("Content-Length", "100")
    connection.endheaders(b"half of it")
    until(lambda: OWN in os.listdir(tmp_path / "bucket"))
    os.kill(server.pid, signal.SIGTERM)
    assert server.wait() == 0
    assert os.listdir(tmp_path / "bucket") == []
    connection.close()


def test_a_download_that_stalls_does_not_hold_up_the_end(server: S3Server, tmp_path: Path) -> None:
    (tmp_path / "bucket" / "k").touch()
    os.truncate(tmp_path / "bucket" / "k", 1 << 30)
    client = s3_server.client_of(server.endpoint, server.key, server.secret)
    content = client.get_object(Bucket="bucket", Key="k")["Body"]
    os.kill(server.pid, signal.SIGTERM)
    assert server.wait() == 0
    content.close()
