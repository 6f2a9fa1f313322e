"""A bucket of another region. Only AWS has regions: what it answers is played by a small server here."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from estimators import ConfigurationError, TensorFlow
from estimators.records.record import job_names

_ANSWER = (
    b"<?xml version='1.0' encoding='UTF-8'?><Error><Code>PermanentRedirect</Code><Message>The bucket you are attempting"
    b" to access must be addressed using the specified endpoint.</Message><Bucket>far</Bucket></Error>"
)


class Elsewhere(http.server.BaseHTTPRequestHandler):
    """Answers as S3 does where a bucket is in eu-west-1."""

    def do_GET(self) -> None:
        self.send_response(301)
        self.send_header("x-amz-bucket-region", "eu-west-1")
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(_ANSWER)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(_ANSWER)

    do_HEAD = do_GET

    def log_message(self, *words: object) -> None:
        pass


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    yield
    server.shutdown()
    server.server_close()


def test_a_bucket_of_another_region_is_said_before_anything_starts(
    elsewhere: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEETFIT_HOME", str(tmp_path))
    (tmp_path / "train.py").write_text("")
    estimator = TensorFlow(entry_point="train.py", source_dir=str(tmp_path), instance_count=1)
    with pytest.raises(ConfigurationError) as caught:
        estimator.fit("s3://far/data", logs=False)
    assert "bucket 'far' is in another region 'eu-west-1'" in str(caught.value)
    assert "Set AWS_REGION=eu-west-1" in str(caught.value)
    assert job_names() == []
