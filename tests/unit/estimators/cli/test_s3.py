"""``fleetfit s3``: what is refused before anything is served."""

from __future__ import annotations

from pathlib import Path

import pytest

from estimators.cli.main import main


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
