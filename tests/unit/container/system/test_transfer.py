"""What is packed for another machine, and which entries are refused."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

from container.system.transfer import left_out, pack


def packed(path: Path, *, follow: bool) -> list[str]:
    file = io.BytesIO()
    pack(file, [(path, "")], follow=follow)
    file.seek(0)
    with tarfile.open(fileobj=file) as tar:
        return sorted(tar.getnames())


def test_data_that_a_host_would_lack_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "a").write_bytes(b"a")
    assert left_out(folder) == left_out(folder / "inner" / "a") == ""
    (folder / "inner" / "b").symlink_to("not-there")
    assert "b' links to 'not-there', which does not exist" in left_out(folder)
    assert packed(folder, follow=False) == ["inner", "inner/a", "inner/b"]  # the link itself
    (folder / "inner" / "b").unlink()
    os.mkfifo(folder / "inner" / "b")
    assert "is a pipe, socket or device" in left_out(folder) and "is a pipe" in left_out(folder / "inner" / "b")
    assert packed(folder, follow=True) == ["inner", "inner/a"]


def test_a_linked_file_is_packed_under_the_name_of_the_link(tmp_path: Path) -> None:
    (tmp_path / "ab12cd").write_bytes(b"x")
    (tmp_path / "train.csv").symlink_to("ab12cd")
    assert packed(tmp_path / "train.csv", follow=True) == ["train.csv"]
