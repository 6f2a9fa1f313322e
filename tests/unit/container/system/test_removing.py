"""Folders are removed with whatever is in them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from container.system.removing import remove_tree


def nest(folder: Path, levels: int, name: str = "some-folder") -> None:
    """Make folders in each other, deeper than a path can say."""
    folder.mkdir(parents=True)
    current = os.open(folder, os.O_RDONLY)
    for level in range(levels):
        os.mkdir(name, dir_fd=current)
        below = os.open(name, os.O_RDONLY, dir_fd=current)
        if level % 100 == 0:
            os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=below))
        os.close(current)
        current = below
    os.close(current)


def test_folders_in_each_other(tmp_path: Path) -> None:
    nest(tmp_path / "top", 3000)
    remove_tree(tmp_path / "top")
    assert list(tmp_path.iterdir()) == []


def test_links_are_removed_and_what_they_lead_to_stays(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    (tmp_path / "top" / "a" / "b").mkdir(parents=True)
    os.mkfifo(tmp_path / "top" / "a" / "pipe")
    for place in ("link", "a/link", "a/b/link"):
        (tmp_path / "top" / place).symlink_to(tmp_path / "kept")
    remove_tree(tmp_path / "top")
    assert [path.name for path in tmp_path.rglob("*")] == ["kept", "file"]
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    with pytest.raises(OSError, match="link"):
        remove_tree(tmp_path / "link")
    assert (tmp_path / "kept" / "file").exists()


def test_folders_that_nobody_may_write_to(tmp_path: Path) -> None:
    (tmp_path / "top" / "a" / "b" / "c").mkdir(parents=True)
    for place in ("a/b/c", "a/b", "a"):
        (tmp_path / "top" / place).chmod(0o500)
    remove_tree(tmp_path / "top")
    assert not (tmp_path / "top").exists()


def test_an_error_leaves_only_what_it_is_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "top" / "a").mkdir(parents=True)
    for name in ("one", "stays", "two"):
        (tmp_path / "top" / "a" / name).touch()
    unlink = os.unlink

    def refuse(path: str, *, dir_fd: int | None = None) -> None:
        if path == "stays":
            raise PermissionError(1, "Operation not permitted")
        unlink(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", refuse)
    with pytest.raises(PermissionError, match=r"not permitted.*stays"):
        remove_tree(tmp_path / "top")
    assert [path.name for path in (tmp_path / "top").rglob("*")] == ["a", "stays"]
    remove_tree(tmp_path / "top", ignore_errors=True)
    remove_tree(tmp_path / "none", ignore_errors=True)
    with pytest.raises(FileNotFoundError):
        remove_tree(tmp_path / "none")


def test_what_another_process_removes_at_the_same_time_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "top" / "a" / "b").mkdir(parents=True)
    (tmp_path / "top" / "file").touch()
    for name in ("unlink", "rmdir"):
        real = getattr(os, name)

        def second(path: str, *, dir_fd: int | None = None, real: Any = real) -> None:
            real(path, dir_fd=dir_fd)  # by the other process
            real(path, dir_fd=dir_fd)

        monkeypatch.setattr(os, name, second)
    remove_tree(tmp_path / "top")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_into_which_another_process_moves_a_nested_one_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "top").mkdir()
    rmdir = os.rmdir

    def meanwhile(path: str, *, dir_fd: int | None = None) -> None:
        monkeypatch.undo()
        (tmp_path / "top" / ".removed-by-another").mkdir()
        rmdir(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "rmdir", meanwhile)
    remove_tree(tmp_path / "top")
    assert list(tmp_path.iterdir()) == []
