"""Input channels, by the agent's command line and by its functions."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from container import agent
from container.agent import AgentError
from container.agent.channels import prepare, read_channels
from container.contract.channels import Channel


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "part-0").write_text("records")
    return folder


def run(tmp_path: Path, channels: object, *bases: Path) -> int:
    file = tmp_path / "channels.json"
    file.write_text(json.dumps(channels))
    return agent.main(
        ["prepare", *(word for base in bases for word in ("--base-dir", str(base))), "--channels", str(file)]
    )


def put(base: Path, *channels: Channel) -> None:
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
        assert os.readlink(place / "train") == str(data)
        assert (place / "test" / "part-0").read_text() == "records"
        assert os.listdir(place / "labels") == ["part-0"]
        assert (place / "labels" / "part-0").read_text() == "records"
        assert not (place / "labels").is_symlink()


def test_another_link_is_replaced_and_an_empty_folder(tmp_path: Path, data: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    put(tmp_path, Channel(name="train", uri=str(other)))
    put(tmp_path, Channel(name="train", uri=str(data)))
    assert (tmp_path / "input/data/train/part-0").exists()
    (tmp_path / "input/data/eval").mkdir()
    put(tmp_path, Channel(name="eval", uri=str(data)))
    assert (tmp_path / "input/data/eval").is_symlink()
    (tmp_path / "input/data/full").mkdir()
    (tmp_path / "input/data/full/x").touch()
    with pytest.raises(AgentError, match="full"):
        put(tmp_path, Channel(name="full", uri=str(data)))


def test_a_folder_behind_links(tmp_path: Path, data: Path) -> None:
    (tmp_path / "alias").symlink_to(data)
    put(tmp_path / "base", Channel(name="train", uri=str(tmp_path / "alias")))
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
        (["train"], "must be an object"),
    ],
)
def test_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str], channels: object, message: str) -> None:
    assert run(tmp_path, channels, tmp_path / "base") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_a_place_that_cannot_be_written(tmp_path: Path, data: Path) -> None:
    (tmp_path / "base").write_text("")
    with pytest.raises(AgentError, match="base"):
        put(tmp_path / "base", Channel(name="train", uri=str(data)))


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
