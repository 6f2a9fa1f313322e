"""Input channels, by the agent's command line and by its functions."""

from __future__ import annotations

import errno
import filecmp
import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from container import agent
from container.agent import files
from container.agent.channels import prepare, read_channels
from container.contract.channels import HostChannel, InputMode
from container.contract.errors import AgentError
from container.system.copying import copy_file
from container.system.removing import remove_tree


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "part-0").write_text("records")
    return folder


def run(tmp_path: Path, channels: object, *bases: Path, more: Sequence[str] = ()) -> int:
    file = tmp_path / "channels.json"
    file.write_text(json.dumps(channels))
    words = [word for base in bases for word in ("--base-dir", str(base))]
    return agent.main(["prepare", *words, "--channels", str(file), *more])


def put(base: Path, *channels: HostChannel) -> None:
    prepare([base], channels, tell=lambda line: None)


def test_folders_and_files(tmp_path: Path, data: Path) -> None:
    bases = [tmp_path / "one", tmp_path / "two"]
    channels = {
        "train": {"uri": str(data), "mode": "File"},
        "test": {"uri": data.as_uri()},
        "labels": {"uri": str(data / "part-0")},
    }
    for _ in range(2):  # a second attempt finds what the first made
        assert run(tmp_path, channels, *bases) == 0
    for base in bases:
        place = base / "input" / "data"
        assert (place / "train" / "part-0").read_text() == "records"
        assert (place / "test" / "part-0").read_text() == "records"
        assert os.listdir(place / "labels") == ["part-0"]
        assert (place / "labels" / "part-0").read_text() == "records"
        assert not any(path.is_symlink() for path in place.rglob("*"))


def test_what_a_script_writes_is_its_hosts_own(tmp_path: Path, data: Path) -> None:
    """As on SageMaker: the folder is a copy, with everything in it, and may be written to."""
    (data / "part-0").chmod(0o444)
    (data / "empty").mkdir()
    (data / "deep" / "er").mkdir(parents=True)
    (data / "deep" / "er" / "a").write_text("a" * 3_000_000)
    os.utime(data / "deep" / "er" / "a", (1, 2))
    (data / "link").symlink_to(data / "deep")
    bases = [tmp_path / "one", tmp_path / "two"]
    prepare(bases, [HostChannel(name="train", uri=str(data))], tell=lambda line: None)
    one, two = (base / "input/data/train" for base in bases)
    assert (one / "empty").is_dir() and (one / "link/er/a").stat().st_mtime == 2
    assert (one / "deep/er/a").read_text() == "a" * 3_000_000
    (one / "part-0").write_text("changed")  # a mode of the user's does not keep a job from writing its copy
    (one / "cache").touch()
    (one / "deep" / "er" / "a").unlink()
    assert (data / "part-0").read_text() == (two / "part-0").read_text() == "records"
    assert sorted(os.listdir(data)) == ["deep", "empty", "link", "part-0"]
    assert (data / "deep" / "er" / "a").exists()


def test_for_containers_anybody_may_write(tmp_path: Path, data: Path) -> None:
    (data / "deep").mkdir(mode=0o700)
    (data / "deep" / "a").touch(mode=0o600)
    assert run(tmp_path, {"train": {"uri": str(data)}}, tmp_path / "base", more=["--everybody"]) == 0
    place = tmp_path / "base/input/data/train"
    assert all(path.stat().st_mode & 0o006 == 0o006 for path in (place, *place.rglob("*")))
    assert (data / "deep").stat().st_mode & 0o777 == 0o700


def test_a_disk_without_room_is_named_before_anything_is_copied(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = os.statvfs_result((4096, 4096, 1000, 10, 10, 1000, 1000, 1000, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    put(tmp_path / "small", HostChannel(name="train", uri=str(data)))  # takes less than what is left to the job
    with (data / "holes").open("wb") as file:
        file.truncate(10**13)
    put(tmp_path / "holes", HostChannel(name="train", uri=str(data)))
    (data / "large").write_bytes(bytes(30_000))
    with pytest.raises(AgentError, match=r"41\.0 kB are free, but File mode copies 3\d\.\d kB.*input_mode='FastFile'"):
        put(tmp_path / "base", HostChannel(name="train", uri=str(data)))
    put(tmp_path / "base", HostChannel(name="train", uri=str(data), mode=InputMode.FAST_FILE))
    assert (tmp_path / "base/input/data/train/holes").stat().st_size == 10**13
    monkeypatch.setattr(files, "clones", lambda source, target: True)  # as btrfs and XFS do, where copies take no room
    put(tmp_path / "other", HostChannel(name="train", uri=str(data)))
    assert (tmp_path / "other/input/data/train/large").exists()


def test_another_folder_replaces_it_and_links_are_for_fast_file(tmp_path: Path, data: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    put(tmp_path, HostChannel(name="train", uri=str(other)))
    put(tmp_path, HostChannel(name="train", uri=str(data)))
    assert (tmp_path / "input/data/train/part-0").exists()
    put(tmp_path, HostChannel(name="train", uri=str(other), mode=InputMode.FAST_FILE))
    put(tmp_path, HostChannel(name="train", uri=str(data), mode=InputMode.FAST_FILE))
    assert os.readlink(tmp_path / "input/data/train") == str(data)
    (tmp_path / "input/data/eval").mkdir()
    put(tmp_path, HostChannel(name="eval", uri=str(data)))
    assert (tmp_path / "input/data/eval/part-0").exists()
    (tmp_path / "input/data/full").mkdir()
    (tmp_path / "input/data/full/x").touch()
    with pytest.raises(AgentError, match="full"):
        put(tmp_path, HostChannel(name="full", uri=str(data)))


def test_a_folder_behind_links(tmp_path: Path, data: Path) -> None:
    (tmp_path / "alias").symlink_to(data)
    put(tmp_path / "base", HostChannel(name="train", uri=str(tmp_path / "alias"), mode=InputMode.FAST_FILE))
    assert os.readlink(tmp_path / "base/input/data/train") == str(data)


@pytest.mark.parametrize(
    ("channels", "message"),
    [
        ({"train": {"uri": "/nowhere/at/all"}}, "'/nowhere/at/all': it does not exist"),
        ({"train": {"uri": "data"}}, "relative"),
        ({"train": {"uri": "/dev/null"}}, "neither a folder nor a file"),
        ({"train": {"uri": "/tmp", "mode": "Fil"}}, "Did you mean 'File'"),
        ({"train": {"uri": "/tmp", "modus": "File"}}, "Did you mean 'mode'"),
        ({"train": "/tmp"}, "needs a 'uri'"),
        ({"../evil": {"uri": "/tmp"}}, "'../evil'"),
        ({"..": {"uri": "/tmp"}}, "'..'"),
        ({"": {"uri": "/tmp"}}, "''"),
        (["train"], "must hold a JSON object"),
    ],
)
def test_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str], channels: object, message: str) -> None:
    assert run(tmp_path, channels, tmp_path / "base") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_a_place_that_cannot_be_written(tmp_path: Path, data: Path) -> None:
    (tmp_path / "base").write_text("")
    with pytest.raises(AgentError, match="base"):
        put(tmp_path / "base", HostChannel(name="train", uri=str(data)))


def test_no_file_and_no_json(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match=r"none\.json"):
        read_channels(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(AgentError, match=r"bad\.json"):
        read_channels(tmp_path / "bad.json")


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["other"],
        ["prepare", "--base-dir", "/x"],
        ["prepare", "--channels", "/x"],
        ["prepare", "--base-dir"],
        ["collect", "--base-dir", "/x", "--channels", "/x"],
        ["collect", "--base-dir", "/x", "--output", "/x", "--output", "/y"],
    ],
)
def test_a_wrong_command_line(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert agent.main(argv) == 2
    assert "usage:" in capsys.readouterr().err


@pytest.mark.parametrize("in_kernel", [True, False])
def test_holes_are_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_kernel: bool) -> None:
    if not in_kernel:

        def refuse(*words: object) -> int:
            raise OSError(errno.EXDEV, "across file systems")

        monkeypatch.setattr("os.copy_file_range", refuse)
    source, copy = tmp_path / "sparse", tmp_path / "copy"
    with source.open("wb") as file:
        file.write(bytes(range(256)) * 10_000)
        file.seek(64 << 20)
        file.write(b"middle")
        file.truncate(128 << 20)
    came: list[int] = []
    copy_file(str(source), str(copy), advance=came.append)
    assert sum(came) == 128 << 20 == copy.stat().st_size
    assert filecmp.cmp(source, copy, shallow=False)
    assert copy.stat().st_blocks * 512 < 4 << 20


def test_a_file_of_a_size_that_is_not_told_is_copied(tmp_path: Path) -> None:
    copy_file("/proc/version", str(tmp_path / "copy"))
    assert (tmp_path / "copy").read_bytes() == Path("/proc/version").read_bytes() != b""


def test_folders_of_any_depth_and_links_in_a_circle(tmp_path: Path, data: Path) -> None:
    try:
        deep = data
        for _ in range(1200):
            deep /= "d"
        os.makedirs(data / "d")
        for place in list(deep.parents)[::-1]:
            place.mkdir(exist_ok=True)
        deep.mkdir()
        (deep / "file").touch()
        put(tmp_path, HostChannel(name="train", uri=str(data)))
        assert (tmp_path / "input/data/train" / deep.relative_to(data) / "file").exists()
        (data / "d/d/up").symlink_to(data / "d")
        with pytest.raises(AgentError, match=r"leads to .*/data/d', a folder that contains"):
            put(tmp_path / "other", HostChannel(name="train", uri=str(data)))
    finally:
        for folder in (data, *tmp_path.glob("*input"), tmp_path / "other"):
            remove_tree(folder, ignore_errors=True)  # pytest's own removing is not made for such
