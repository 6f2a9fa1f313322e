"""An endpoint that is killed while it creates a job leaves the whole job, which waits for the next one, or none."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from killing import killed_at
from serving import IMAGE, write_archive

from estimators.jobs import launch
from estimators.jobs.record import JobRecord
from estimators.service.queue import Queue
from estimators.service.records import Jobs
from estimators.service.settings import Place
from estimators.service.storage import Storage
from estimators.service.training import Training
from estimators.service.translation import Local

REQUEST = {
    "TrainingJobName": "job",
    "RoleArn": "arn:aws:iam::000000000000:role/me",
    "AlgorithmSpecification": {"TrainingImage": IMAGE, "TrainingInputMode": "File"},
    "OutputDataConfig": {"S3OutputPath": "s3://bucket/out"},
    "ResourceConfig": {"InstanceType": "ml.m5.xlarge", "InstanceCount": 1, "VolumeSizeInGB": 1},
    "StoppingCondition": {"MaxRuntimeInSeconds": 60},
    "HyperParameters": {
        "sagemaker_program": "train.py",
        "sagemaker_submit_directory": "s3://bucket/sourcedir.tar.gz",
    },
}


class Endpoint:
    """An endpoint's jobs and queue, without HTTP; jobs are not run."""

    def __init__(self, home: Path) -> None:
        self.started: list[str] = []
        jobs = Jobs(home, "us-east-1")
        self.queue = Queue(jobs, 1, {}, lambda line: None)
        self.training = Training(jobs, self.queue, Storage(Place(home), home / "s3"), Local())

    def start(self, record: JobRecord, environment: Any) -> Any:
        """Instead of a supervisor's start."""
        self.started.append(record.name)
        return None


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
