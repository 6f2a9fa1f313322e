"""An endpoint that is killed while it creates a job leaves the whole job, which waits for the next one, or none."""

from __future__ import annotations

import gzip
import itertools
import tarfile
from pathlib import Path
from typing import Any

import pytest
from killing import killed_at
from serving import IMAGE, write_archive

from estimators.client import launch
from estimators.records.record import JobRecord
from estimators.service import training
from estimators.service.errors import ServiceError
from estimators.service.queue import Queue
from estimators.service.records import Jobs
from estimators.service.settings import EndpointFiles
from estimators.service.source import bring_source
from estimators.service.storage import Storage
from estimators.service.training import Training
from estimators.service.translation import Local

pytestmark = pytest.mark.leaves("files")

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
        self.training = Training(jobs, self.queue, Storage(EndpointFiles(home), home / "s3"), Local())

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


@pytest.mark.parametrize(
    ("name", "size", "message"),
    [("/".join("d" * 3000), 0, "more than 128 folders deep"), ("bomb", 6 << 30, "unpacks to more than 1,073,741,824")],
)
def test_an_archive_beyond_bounds_is_refused_and_leaves_nothing(
    tmp_path: Path, name: str, size: int, message: str
) -> None:
    place = tmp_path / "s3" / "bucket" / "sourcedir.tar.gz"
    place.parent.mkdir(parents=True)
    entry = tarfile.TarInfo(name)
    entry.size = size
    with gzip.open(place, "wb", compresslevel=1) as file:
        file.write(entry.tobuf(format=tarfile.PAX_FORMAT))
        file.write(b"\0" * 20480)  # of the bomb the beginning is enough: it is refused by what it says
    endpoint = Endpoint(tmp_path)
    for _ in range(2):
        with pytest.raises(ServiceError, match=message) as caught:
            endpoint.training.create(REQUEST)
        assert caught.value.status == 400
    assert list((tmp_path / "jobs").iterdir()) == []


def test_a_request_that_is_sent_again_meanwhile_makes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_archive(tmp_path / "s3" / "bucket" / "sourcedir.tar.gz", {"train.py": "print('x')"})
    endpoint = Endpoint(tmp_path)
    monkeypatch.setattr(launch, "start", endpoint.start)
    met: list[str] = []

    def bring(spec: Any, record: JobRecord, storage: Storage) -> None:
        """Another client's turn, in the middle of it."""
        with pytest.raises(ServiceError) as caught:
            endpoint.training.create(REQUEST)
        met.append(caught.value.code)
        bring_source(spec, record, storage)

    monkeypatch.setattr(training, "bring_source", bring)
    endpoint.training.create(REQUEST)
    assert met == ["ResourceInUse"] and endpoint.started == ["job"]
    assert [path.name for path in (tmp_path / "jobs").iterdir()] == ["job"]
