"""What a division that fails late leaves behind."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from container.agent.divide import divide
from container.contract.errors import AgentError
from container.system import locks


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "one.txt"
    path.write_text("".join(f"{number}\n" for number in range(8)))
    return path


@pytest.mark.parametrize("earlier", [None, "an earlier one"])
def test_a_manifest_that_does_not_fit_on_the_disk_leaves_the_earlier_one(
    source: Path, tmp_path: Path, earlier: str | None
) -> None:
    manifest = tmp_path / "many.manifest"
    if earlier is not None:
        manifest.write_text(earlier)
    before = sorted(tmp_path.iterdir())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (32, hard))  # more than each part, and less than the manifest
    try:
        with pytest.raises(AgentError, match="cannot be written: File too large"):
            divide(str(source), str(tmp_path / "many"), 4, manifest=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert sorted(tmp_path.iterdir()) == sorted([*before, tmp_path / "many"])
    assert earlier is None or manifest.read_text() == earlier
    assert list((tmp_path / "many").iterdir()) == []


def test_a_file_that_cannot_be_removed_hides_neither_the_first_error_nor_the_others(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, third = (tmp_path / "many" / f"one-0000{number}-of-00003.txt" for number in (0, 2))
    replace = os.replace

    def late(file: Path, new: Path) -> None:
        """Another program takes the first and the third name at this moment."""
        if new == third:
            first.unlink()
            first.mkdir()
            third.mkdir()
        replace(file, new)

    monkeypatch.setattr("os.replace", late)
    with pytest.raises(AgentError, match=f"{third.name}: the parts cannot be written"):
        divide(str(source), str(tmp_path / "many"), 3)
    assert sorted((tmp_path / "many").iterdir()) == [first, third]


def test_what_a_killed_run_has_left_is_removed(source: Path, tmp_path: Path) -> None:
    killed, running = (tmp_path / "many" / f".dividing-{name}" for name in ("killed", "running"))
    for folder in (killed, running):
        folder.mkdir(parents=True)
        (folder / "one-00000-of-00002.txt").write_text("0\n")
    lock = locks.take(running / "lock")
    assert lock is not None
    divide(str(source), str(tmp_path / "many"), 2)
    os.close(lock)
    parts = ["one-00000-of-00002.txt", "one-00001-of-00002.txt"]
    assert sorted(os.listdir(tmp_path / "many")) == [running.name, *parts]


def test_more_files_than_may_be_open_at_first(source: Path, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
    try:
        counts, _ = divide(str(source), str(tmp_path / "many"), 200)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert sum(counts) == 8


def test_a_folder_whose_channel_would_have_each_record_twice(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "many"
    divide(str(source), str(target), 2)
    (target / "other-00000-of-00002.txt").touch()  # of another file
    with pytest.raises(AgentError, match=r"one-00000-of-00002.txt exists already"):
        divide(str(source), str(target), 3)
    with pytest.raises(AgentError, match=r"one.txt is in .*each record twice.*--manifest"):
        divide(str(source), str(tmp_path), 2)
    divide(str(source), str(tmp_path), 2, manifest=True)
    tmp_path.with_name(f"{tmp_path.name}.manifest").unlink()
