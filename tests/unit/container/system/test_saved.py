"""What of a folder of checkpoints is synchronized."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from container.system import saved


def test_an_entry_that_cannot_be_read_is_told_and_the_others_are_found(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    folder = os.open(tmp_path, os.O_RDONLY)
    for _ in range(25):  # longer than a path may be
        os.mkdir("d" * 200, dir_fd=folder)
        inner = os.open("d" * 200, os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(folder)
    found = dict(saved.walk(str(tmp_path), follow=True))
    assert isinstance(found.pop("a"), os.stat_result)
    ((name, error),) = found.items()
    assert name.startswith("dddd") and isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG
    assert list(saved.files_below(tmp_path)) == ["a"]
    assert list(saved.walk(str(tmp_path / "missing"), follow=True)) == []
    shutil.rmtree(tmp_path)
