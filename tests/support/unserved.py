"""An endpoint's jobs and queue without HTTP, whose jobs are not run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from serving import IMAGE

from container.contract.wire import Piece
from estimators.records import status as statuses
from estimators.records.logs import LogWriter
from estimators.records.record import JobRecord
from estimators.records.states import SecondaryStatus
from estimators.service.queue import EndpointQueue
from estimators.service.records import Jobs
from estimators.service.settings import EndpointFiles
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


def write_job(home: Path, name: str, pieces: Iterable[Piece], *steps: SecondaryStatus, hosts: int = 1) -> JobRecord:
    """The record of a job that has printed these pieces and has come through these steps."""
    record = JobRecord.create(name, home)
    request = {
        "TrainingJobName": name,
        "AlgorithmSpecification": {"TrainingInputMode": "File"},
        "ResourceConfig": {"InstanceType": "local_process", "InstanceCount": hosts},
    }
    record.write_request(request)
    status = statuses.new_status(request, 1.0)
    for step in steps:
        status = statuses.transition(status, step, 2.0)
    record.write_status(status)
    writer = LogWriter(record)
    for piece in pieces:
        writer.write(piece, 5_000_000_000)
    writer.flush()
    return record


class Endpoint:
    """An endpoint's jobs and queue, without HTTP; jobs are not run."""

    def __init__(self, home: Path) -> None:
        self.started: list[str] = []
        jobs = Jobs(home, "us-east-1")
        self.queue = EndpointQueue(jobs, 1, {}, lambda line: None)
        self.training = Training(jobs, self.queue, Storage(EndpointFiles(home), home / "s3"), Local())

    def start(self, record: JobRecord, environment: Any) -> None:
        """Stand for a supervisor's start."""
        self.started.append(record.name)
        record.release()
