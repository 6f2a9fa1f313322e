"""Digests of channels: what counts, what is bounded."""

import os
from pathlib import Path

import pytest

from estimators.records.provenance.digests import Digester


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    (folder / "sub").mkdir(parents=True)
    (folder / "b.bin").write_bytes(b"b" * 1000)
    (folder / "sub" / "a.bin").write_bytes(b"a" * 500)
    return folder


def digest(path: Path, limit: int = 1 << 20) -> dict:
    return Digester(limit=limit).digest(path)


def test_all_files_count(data: Path, tmp_path: Path) -> None:
    facts = digest(data)
    assert (facts["files"], facts["bytes"], facts["hashed_bytes"], facts["complete"]) == (2, 1500, 1500, True)
    assert [entry[:2] for entry in facts["entries"]] == [["b.bin", 1000], ["sub/a.bin", 500]]


def test_the_digest_is_of_names_and_contents_not_of_times(data: Path, tmp_path: Path) -> None:
    first = digest(data)["digest"]
    os.utime(data / "b.bin", (1, 1))
    assert digest(data)["digest"] == first
    (data / "b.bin").write_bytes(b"c" * 1000)
    changed = digest(data)["digest"]
    assert changed != first
    (data / "b.bin").rename(data / "c.bin")
    assert digest(data)["digest"] != changed


def test_the_same_data_elsewhere_has_the_same_digest(data: Path, tmp_path: Path) -> None:
    first = digest(data)["digest"]
    assert digest(data.rename(tmp_path / "moved"))["digest"] == first


def test_only_so_much_is_read_and_the_digest_is_the_same_each_time(data: Path) -> None:
    facts = digest(data, limit=600)
    assert facts["hashed_bytes"] == 500
    assert facts["complete"] is False
    assert facts["entries"][0][3] is None
    assert digest(data, limit=600) == facts


def test_the_bound_is_over_all_channels(data: Path, tmp_path: Path) -> None:
    digester = Digester(limit=1000)
    assert digester.digest(data / "b.bin")["complete"] is True
    assert digester.digest(data / "sub")["complete"] is False


def test_a_single_file_a_fifo_and_a_dangling_link(data: Path, tmp_path: Path) -> None:
    os.mkfifo(data / "fifo")
    os.symlink("nowhere", data / "dangling")
    assert digest(data)["files"] == 2
    assert digest(data / "b.bin")["entries"][0][:2] == ["b.bin", 1000]
    with pytest.raises(FileNotFoundError):
        digest(data / "dangling")
