"""Collecting the rest, in a real child process and in this one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from estimators.records import provenance
from estimators.records.provenance import collecting


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "job"
    folder.mkdir()
    data = tmp_path / "my data"
    data.mkdir()
    (data / "x.txt").write_text("x")
    request = {
        "TrainingJobName": "job",
        "HyperParameters": {"seed": "7", "fleetfit_seed": "8", "epochs": "2"},
        "Environment": {"PYTHONHASHSEED": "3"},
        "InputDataConfig": [
            {"ChannelName": "train", "DataSource": {"S3DataSource": {"S3Uri": data.as_uri()}}},
            {"ChannelName": "plain", "DataSource": {"S3DataSource": {"S3Uri": str(data)}}},
            {"ChannelName": "gone", "DataSource": {"S3DataSource": {"S3Uri": str(tmp_path / "gone")}}},
            {"ChannelName": "remote", "DataSource": {"S3DataSource": {"S3Uri": "s3://bucket/x"}}},
        ],
    }
    (folder / "request.json").write_text(json.dumps(request))
    (folder / "options.json").write_text(json.dumps({"python": sys.executable}))
    (folder / "provenance.json").write_text(json.dumps(provenance.caller_facts(source=tmp_path)))
    return folder


def test_a_child_process_completes_it(record: Path) -> None:
    done = subprocess.run(provenance.command(record), capture_output=True, timeout=60, cwd="/")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    facts = collecting.read(record)
    assert facts["complete"] is True
    assert facts["pending"] == []
    assert facts["errors"] == {}
    assert facts["seeds"] == {"seed": 7, "PYTHONHASHSEED": "3"}
    assert facts["git"] is None
    assert facts["software"]["fleetfit"]
    assert facts["machine"]["cores"] >= 1
    assert any(line.startswith("pytest==") for line in facts["packages"]["freeze"])
    assert sorted(facts["data"]) == ["gone", "plain", "train"]
    assert facts["data"]["train"]["digest"] == facts["data"]["plain"]["digest"]
    assert "No such file" in facts["data"]["gone"]["error"]
    assert facts["caller"]["argv"]
    assert (record / "provenance.json").stat().st_mode & 0o077 == 0


def test_an_interrupted_collection_goes_on_where_it_was(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(collecting, "_machine", killed)
        with pytest.raises(KeyboardInterrupt):
            collecting.collect(record)
    facts = collecting.read(record)
    assert facts["pending"] == ["machine", "packages", "data"]
    assert facts["complete"] is False
    software = facts["software"]
    monkeypatch.setattr(collecting, "_software", killed)
    facts = collecting.collect(record)
    assert facts["complete"] is True
    assert facts["software"] == software
    assert collecting.collect(record) == facts


def test_one_share_that_fails_does_not_cost_the_others(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise OSError("a foreign file system")

    monkeypatch.setattr(collecting, "_machine", broken)
    facts = collecting.collect(record)
    assert facts["machine"] is None
    assert facts["errors"] == {"machine": "OSError: a foreign file system"}
    assert facts["complete"] is True
    assert facts["packages"]["freeze"]


def test_a_record_without_anything_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert collecting.read(tmp_path) == {}
    (tmp_path / "request.json").write_text("damaged")
    assert collecting.collect(tmp_path)["complete"] is True


def test_a_record_that_was_removed_stays_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = subprocess.run(provenance.command(tmp_path / "job"), capture_output=True, timeout=60, text=True)
    assert done.returncode == 1
    assert "cannot be written" in done.stderr
    assert not (tmp_path / "job").exists()


def test_the_child_steps_back(record: Path) -> None:
    code = (
        "import os, sys; from estimators.records.provenance import __main__ as m; m.lower_priority(); print(os.nice(0))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert int(done.stdout) == 19
