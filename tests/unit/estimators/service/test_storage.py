"""Objects of the S3 server as files: only those that are inside of their bucket."""

from __future__ import annotations

from pathlib import Path

import pytest

from estimators.service.settings import EndpointFiles
from estimators.service.storage import Storage


@pytest.mark.parametrize(
    ("bucket", "key"),
    [
        ("..", "a"), (".", "a"), ("", "a"), ("b", ""), ("b", "../a"), ("b", "a/../../b"), ("b", "a//b"), ("b", "/etc"),
        ("b", "a\0"), ("b\0", "a"), ("x" * 256, "a"), ("b", "é" * 128), ("b", "a/" + "x" * 256), ("link", "b/a"),
        ("b", "link"), (".hidden", "a"), ("b/a", "x"),
    ],
)  # fmt: skip
def test_names_that_lead_out_or_cannot_be_are_no_objects(tmp_path: Path, bucket: str, key: str) -> None:
    served = tmp_path / "s3"
    storage = Storage(EndpointFiles(tmp_path), served)
    for folder in ("b/a", ".hidden"):
        (served / folder).mkdir(parents=True)
    for place in ("s3/b/a/x", "s3/a", "a", "secret", "s3/.hidden/a", "b"):
        if not (tmp_path / place).exists():
            (tmp_path / place).touch()
    (served / "link").symlink_to(served)
    (served / "b" / "link").symlink_to(tmp_path / "secret")
    assert storage.path(bucket, key) is None
    assert storage.path("b", "a/x") == served / "b" / "a" / "x"
