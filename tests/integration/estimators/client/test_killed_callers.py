"""A caller that is killed while it creates a job leaves a whole record, or none and the name free."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from killing import killed_at
from running import start

from estimators.client.training_job import TrainingJob
from estimators.records.record import job_names


def test_a_kill_at_any_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = []
    for step in itertools.count(0, 3):
        home = tmp_path / str(step)
        monkeypatch.setenv("FLEETFIT_HOME", str(home))
        killed = killed_at(step, home, lambda home=home: start("print('x')", home), before="--lock-fd")
        there.append(job_names() == ["job-1"])
        if there[-1]:
            job = TrainingJob.attach("job-1")
            assert job.describe()["HyperParameters"]["epochs"] == "3"
            assert (job.record.source_dir / "train.py").exists()
            assert job.status == "Failed"  # nothing runs it, and that is said
            assert "supervisor lost" in job.describe()["FailureReason"]
        if not killed:
            break
    assert there == sorted(there)
    assert set(there) == {False, True}
