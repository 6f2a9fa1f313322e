"""``fleetfit s3``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import until

from estimators.cli.main import main

FLEETFIT = [sys.executable, "-m", "estimators.cli.main"]


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "FLEETFIT_"))}
    return {**kept, "FLEETFIT_CACHE": str(tmp_path / "cache"), "AWS_EC2_METADATA_DISABLED": "true", **more}


def exported(text: str) -> dict[str, str]:
    return dict(line.removeprefix("export ").split("=", 1) for line in text.splitlines())


def listed(tmp_path: Path, variables: dict[str, str]) -> str:
    """What boto3 finds with nothing but the printed variables."""
    program = "import boto3; print([b['Name'] for b in boto3.client('s3').list_buckets()['Buckets']])"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(tmp_path, **variables), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_in_the_foreground(tmp_path: Path) -> None:
    (tmp_path / "data" / "digits").mkdir(parents=True)
    fixed = {"FLEETFIT_S3_KEY": "me-too", "FLEETFIT_S3_SECRET": "s3cr3t-of-the-test"}
    process = subprocess.Popen(
        [*FLEETFIT, "s3", str(tmp_path / "data")],
        env=environment(tmp_path, **fixed),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        variables = exported("".join(process.stdout.readline() for _ in range(4)))
        assert variables["AWS_ACCESS_KEY_ID"] == "me-too"
        assert listed(tmp_path, variables) == "['digits']"
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert children
        for pid in (process.pid, *map(int, children)):  # what every user of the machine can read
            assert b"s3cr3t" not in Path(f"/proc/{pid}/cmdline").read_bytes()
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    assert "Ctrl-C ends the server" in errors
    assert "s3cr3t" not in errors
    assert not any(alive(int(pid)) for pid in children)


def test_for_eval(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    done = subprocess.run(
        [*FLEETFIT, "s3", str(tmp_path / "new"), "--env"],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    variables = exported(done.stdout)
    pid = int(variables["FLEETFIT_S3_PID"])
    try:
        assert listed(tmp_path, variables) == "[]"
    finally:
        os.kill(pid, signal.SIGTERM)
    until(lambda: not alive(pid))


def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["s3", str(tmp_path / "file")]) == 2
    assert "is not a folder" in capsys.readouterr().err
    assert main(["s3", str(tmp_path), "--port", "0x"]) == 2
    assert "whole number" in capsys.readouterr().err
    monkeypatch.setenv("FLEETFIT_S3_KEY", "abc")
    assert main(["s3", str(tmp_path)]) == 2
    assert "FLEETFIT_S3_SECRET" in capsys.readouterr().err
    monkeypatch.setenv("FLEETFIT_S3_SECRET", "short")
    assert main(["s3", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "at least 8" in said and "short" not in said
