"""What is packed for another machine, and which entries are refused."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from container.system.transfer import pack


def packed(path: Path, *, follow: bool) -> list[str]:
    file = io.BytesIO()
    pack(file, [(path, "")], follow=follow)
    file.seek(0)
    with tarfile.open(fileobj=file) as tar:
        return sorted(tar.getnames())


def test_data_that_a_host_would_lack_is_an_error(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a").write_bytes(b"a")
    (folder / "b").symlink_to("not-there")
    with pytest.raises(OSError, match="b' links to 'not-there', which does not exist"):
        packed(folder, follow=True)
    assert packed(folder, follow=False) == ["a", "b"]  # the link itself
    (folder / "b").unlink()
    os.mkfifo(folder / "b")
    with pytest.raises(OSError, match="is a pipe, socket or device"):
        packed(folder, follow=True)
    assert packed(folder, follow=False) == ["a"]


def test_a_linked_file_is_packed_under_the_name_of_the_link(tmp_path: Path) -> None:
    (tmp_path / "ab12cd").write_bytes(b"x")
    (tmp_path / "train.csv").symlink_to("ab12cd")
    assert packed(tmp_path / "train.csv", follow=True) == ["train.csv"]
