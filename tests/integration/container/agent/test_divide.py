"""``fleetfit shard``: one large file becomes many."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from feeding import split, write_objects

from container.agent.divide import divide
from container.contract.errors import AgentError
from container.formats import RecordFormat
from estimators.cli import main


@pytest.mark.parametrize("record_format", list(RecordFormat))
def test_one_file_becomes_many(
    tmp_path: Path, record_format: RecordFormat, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Relative paths are this directory's."""
    monkeypatch.chdir(tmp_path)
    records = write_objects(tmp_path / "one", [1003], record_format)
    source = tmp_path / "one" / "part-00"
    if record_format is RecordFormat.TEXT_LINE:
        source.write_bytes(source.read_bytes()[:-1])
    target = tmp_path / "many"
    assert main.main(["shard", "one/part-00", "many", "--shards", "4", "--manifest"]) == 0
    assert "1,003 records" in capfd.readouterr().out
    parts = [split(record_format, path.read_bytes()) for path in sorted(target.iterdir())]
    assert [len(part) for part in parts] == [251, 251, 251, 250]
    assert sorted(sum(parts[1:], parts[0])) == sorted(records)
    prefix, *names = json.loads((tmp_path / "many.manifest").read_text())
    assert prefix == {"prefix": f"{target}/"} and names == [f"part-00-{n:05d}-of-00004" for n in range(4)]
    assert (tmp_path / "many.manifest").stat().st_mode == next(target.iterdir()).stat().st_mode
    # Nothing is overwritten.
    assert main.main(["shard", str(source), str(target), "--shards", "4"]) == 2
    assert "exists already" in capfd.readouterr().err


def test_what_cannot_be_divided(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_objects(tmp_path / "one", [10])
    source = tmp_path / "one" / "part-00"
    source.write_bytes(source.read_bytes()[:-1])
    (tmp_path / "picture").write_bytes(b"\x89PNG\0")
    for path, words in (
        (source, "record 10 at byte 162: it is cut off"),
        (tmp_path / "picture", "its format is not TFRecord, RecordIO or text"),
        (tmp_path / "no", "does not exist"),
    ):
        assert main.main(["shard", str(path), str(tmp_path / "many"), "--shards", "2"]) == 2
        said = capfd.readouterr().err
        assert words in said and str(path) in said
    assert list((tmp_path / "many").iterdir()) == []


@pytest.mark.parametrize("refused", ["many/part-00-00002-of-00004", "many.manifest"])
def test_files_that_cannot_all_be_put_there_do_not_stay_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    write_objects(tmp_path / "one", [10])
    source, target = str(tmp_path / "one" / "part-00"), tmp_path / "many"
    replace = os.replace

    def late(file: Path, new: Path) -> None:
        """Another program makes a folder of that name at this moment."""
        if new == tmp_path / refused:
            new.mkdir()
        replace(file, new)

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", late)
        with pytest.raises(AgentError, match=Path(refused).name):
            divide(source, str(target), 4, manifest=True)
    (tmp_path / refused).rmdir()
    assert list(target.iterdir()) == []
    assert divide(source, str(target), 4, manifest=True)[0] == [3, 3, 2, 2]
