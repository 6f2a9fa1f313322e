"""Files that are replaced at once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from container.system import files


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    files.replace(path, b"first")
    files.replace(path, b"second", mode=0o640)
    assert path.read_bytes() == b"second" and path.stat().st_mode & 0o777 == 0o640
    with pytest.raises(OSError):
        files.replace(tmp_path, b"a folder cannot be replaced")
    assert sorted(os.listdir(tmp_path)) == ["keys"]


def test_a_link_that_somebody_has_planted_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name cannot be guessed; and if it is, nothing is written."""
    monkeypatch.setattr(os, "urandom", lambda count: bytes(count))
    (tmp_path / "other").write_text("as it was")
    planted = tmp_path / f".keys.{bytes(8).hex()}"
    planted.symlink_to("other")
    with pytest.raises(FileExistsError):
        files.replace(tmp_path / "keys", b"secret")
    assert (tmp_path / "other").read_text() == "as it was" and planted.is_symlink()
