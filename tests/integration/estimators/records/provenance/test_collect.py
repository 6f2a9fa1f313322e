"""Collecting the rest, in a real child process and in this one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from estimators.records import provenance
from estimators.records.provenance import collecting


def test_a_child_process_completes_it(tmp_path: Path) -> None:
    record, data = tmp_path / "job", tmp_path / "my data"
    for folder in (record, data):
        folder.mkdir()
    (data / "x.txt").write_text("x")
    places = {
        "train": data.as_uri(), "plain": str(data), "gone": str(tmp_path / "gone"), "remote": "s3://bucket/x"
    }  # fmt: skip
    request = {
        "TrainingJobName": "job",
        "HyperParameters": {"seed": "7", "fleetfit_seed": "8", "epochs": "2"},
        "Environment": {"PYTHONHASHSEED": "3"},
        "InputDataConfig": [
            {"ChannelName": name, "DataSource": {"S3DataSource": {"S3Uri": uri}}} for name, uri in places.items()
        ],
    }
    (record / "request.json").write_text(json.dumps(request))
    (record / "options.json").write_text(json.dumps({"python": sys.executable}))
    (record / "provenance.json").write_text(json.dumps(provenance.caller_facts(source=tmp_path)))
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

    # It steps back, and a record that was removed stays removed.
    code = (
        "import os, psutil; from estimators.records.provenance import __main__ as m; m.lower_priority(); "
        "print(os.nice(0), psutil.Process().ionice().ioclass == psutil.IOPRIO_CLASS_IDLE)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout.split() == ["19", "True"]
    done = subprocess.run(provenance.command(tmp_path / "removed"), capture_output=True, timeout=60, text=True)
    assert done.returncode == 1
    assert "cannot be written" in done.stderr
    assert not (tmp_path / "removed").exists()


def test_what_fails_or_is_interrupted_costs_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed() -> None:
        raise KeyboardInterrupt

    def broken() -> None:
        raise OSError("a foreign file system")

    assert collecting.read(tmp_path) == {}
    (tmp_path / "request.json").write_text("damaged")
    (tmp_path / "provenance.json").write_text(json.dumps(provenance.caller_facts(source=tmp_path)))
    with monkeypatch.context() as patch:
        patch.setattr(collecting, "_machine", killed)
        with pytest.raises(KeyboardInterrupt):
            collecting.collect(tmp_path)
    facts = collecting.read(tmp_path)
    assert facts["pending"] == ["machine", "packages", "data"]
    assert facts["complete"] is False

    # It goes on where it was, and passes over what fails.
    monkeypatch.setattr(collecting, "_software", killed)
    monkeypatch.setattr(collecting, "_machine", broken)
    again = collecting.collect(tmp_path)
    assert again["complete"] is True
    assert again["software"] == facts["software"]
    assert again["machine"] is None
    assert again["errors"] == {"machine": "OSError: a foreign file system"}
    assert again["packages"]["freeze"]
    assert collecting.collect(tmp_path) == again
