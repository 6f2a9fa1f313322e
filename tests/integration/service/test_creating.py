"""An endpoint that is killed while it creates a job leaves the whole job, which waits for the next one, or none."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from killing import killed_at
from serving import write_archive
from unserved import REQUEST, Endpoint

from estimators.client import launch


def create(home: Path, step: int) -> bool:
    """Create the job in a process that is killed at a step; whether it was."""
    write_archive(home / "s3" / "bucket" / "sourcedir.tar.gz", {"train.py": "print('x')"})

    def work() -> None:
        endpoint = Endpoint(home)
        launch.start = endpoint.start
        endpoint.training.create(REQUEST)

    return killed_at(step, home, work)


def test_a_kill_at_any_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there: list[bool] = []
    for step in itertools.count(0, 3):
        home = tmp_path / str(step)
        if not create(home, step):
            break
        endpoint = Endpoint(home)
        monkeypatch.setattr(launch, "start", endpoint.start)
        there.append((home / "jobs" / "job").exists())
        if there[-1]:
            described = endpoint.training.describe({"TrainingJobName": "job"})
            assert described["TrainingJobStatus"] == "InProgress"
            assert described["StoppingCondition"] == REQUEST["StoppingCondition"]
            endpoint.queue.start()
            endpoint.queue.close()
        else:
            endpoint.training.create(REQUEST)  # the name is free
        assert endpoint.started == ["job"]
        assert (home / "jobs" / "job" / "source" / "train.py").exists()
    assert there == sorted(there) and len(there) > 3
    assert set(there) == {False, True}
