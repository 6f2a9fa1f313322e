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
        ("b", "a\0"), ("b\0", "a"), ("x" * 256, "a"), ("b", "é" * 128), ("b", "a/" + "x" * 256), ("link", "a"),
        ("b", "link"),
    ],
)  # fmt: skip
def test_names_that_lead_out_or_cannot_be_are_no_objects(tmp_path: Path, bucket: str, key: str) -> None:
    storage = Storage(EndpointFiles(tmp_path), tmp_path / "s3")
    (tmp_path / "s3" / "b").mkdir(parents=True)
    (tmp_path / "s3" / "link").symlink_to(tmp_path)
    (tmp_path / "s3" / "b" / "link").symlink_to(tmp_path / "secret")
    assert storage.path(bucket, key) is None
    assert storage.path("b", "a/" + "x" * 255) == tmp_path / "s3" / "b" / "a" / ("x" * 255)
