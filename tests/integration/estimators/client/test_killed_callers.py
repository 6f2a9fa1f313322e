"""A caller that is killed while it creates a job leaves a whole record, or none and the name free."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
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


def test_a_script_that_is_debugged_ends_with_its_caller(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import time; print(1, flush=True); time.sleep(60); print(2)")
    command = [sys.executable, "-m", "estimators.cli.main", "train", "train.py", "--debug"]
    env = {**os.environ, "FLEETFIT_HOME": str(tmp_path / "home")}
    with subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE) as caller:
        assert caller.stdout is not None and caller.stdout.readline() == b"1\n"
        caller.kill()
        assert caller.stdout.read() == b""  # the end of the file comes with the end of the script
