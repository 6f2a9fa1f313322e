"""What the tests of `fleetfit clean` share: a home that nothing else uses, and jobs that have ended."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import pytest

from container.system import folders, unused
from container.system.processes import descendants
from estimators.cli import clean
from estimators.cli.clean import ItemKind
from estimators.records import status as statuses
from estimators.records.record import JobRecord

DAY = 86400.0


def separate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the home, and hide what other tests have left."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("FLEETFIT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FLEETFIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path / "tmp"))
    # A path too long for sockets is not used for them, and other tests' folders are none of ours.
    monkeypatch.setattr(folders, "_FALLBACK", str(tmp_path / "tmp"))
    (tmp_path / "shm").mkdir()
    monkeypatch.setattr(folders, "SHARED_MEMORY", str(tmp_path / "shm"))
    # Nor are their processes and containers, which they may just have left behind and look at.
    own_processes = unused.own_processes
    monkeypatch.setattr(unused, "own_processes", lambda: sorted({*own_processes()} & {*descendants()}))
    monkeypatch.setattr(clean, "left_by_backends", lambda home=None: [])
    return tmp_path / "home"


def make_job(name: str, *, ended_days_ago: float = 0.0, size: int = 0) -> JobRecord:
    record = JobRecord.create(name)
    now = time.time() - ended_days_ago * DAY
    record.write_request({"TrainingJobName": name})
    status = statuses.new_status({"TrainingJobName": name}, now)
    record.write_status(
        {**status, "TrainingJobStatus": "Completed", "SecondaryStatus": "Completed", "TrainingEndTime": now}
    )
    (record.output_dir / "model.tar.gz").write_bytes(b"x" * size)
    record.release()
    return record


def names(items: list[clean.Item], kind: ItemKind = ItemKind.JOB) -> list[str]:
    return [item.name for item in items if item.kind is kind]
