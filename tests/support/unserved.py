"""An endpoint's jobs and queue without HTTP, whose jobs are not run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from serving import IMAGE

from estimators.records.record import JobRecord
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
