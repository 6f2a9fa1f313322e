"""The queue goes on whatever happens to a job that waits, and loses none."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import clusters
import pytest
import running
from serving import IMAGE, write_archive
from waiting import until

from estimators.client import launch
from estimators.job.errors import RecordError
from estimators.records import status as statuses
from estimators.records.record import JobRecord
from estimators.records.states import SecondaryStatus
from estimators.service.queue import Queue
from estimators.service.records import Jobs
from estimators.service.settings import EndpointFiles
from estimators.service.storage import Storage
from estimators.service.training import Training
from estimators.service.translation import Local


class Started:
    """A queue for one job at a time whose jobs are not run; what it started is ``names``."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.names: list[str] = []
        self.records: list[JobRecord] = []
        self.told: list[str] = []
        self.queue = Queue(Jobs(home, "us-east-1"), 1, {}, self.told.append)

    def start(self, record: JobRecord, environment: Any) -> subprocess.Popen[bytes]:
        """Instead of a supervisor's start: the lock stays held, as a supervisor would."""
        self.names.append(record.name)
        return subprocess.Popen(["true"])

    def submit(self, name: str, **request: Any) -> JobRecord:
        """A new job."""
        record = JobRecord.stage(name, self.home)
        record.write_status(statuses.new_status({"TrainingJobName": name}, time.time()))
        self.records.append(record)
        self.queue.submit(record, name, request)
        return record

    def finish(self, record: JobRecord) -> None:
        """What a supervisor does at the end."""
        status = statuses.transition(record.stored_status() or {}, SecondaryStatus.TRAINING, time.time())
        record.write_status(statuses.transition(status, SecondaryStatus.COMPLETED, time.time()))
        record.release()


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Started]:
    queue = Started(tmp_path)
    monkeypatch.setattr(launch, "start", queue.start)
    queue.queue.start()
    yield queue
    queue.queue.close()
    for record in queue.records:
        record.release()


def test_a_job_that_was_removed_while_it_waited_holds_up_nobody(started: Started) -> None:
    first = started.submit("first")
    shutil.rmtree(started.submit("second").path)
    started.submit("third")
    started.finish(first)
    until(lambda: started.names == ["first", "third"])
    assert any("second cannot be started" in line for line in started.told)


def test_a_job_whose_lock_is_looked_at_when_its_turn_comes_is_started_later(started: Started) -> None:
    first, second = started.submit("first"), started.submit("second")
    reader = os.open(second.lock_file, os.O_RDONLY)
    fcntl.flock(reader, fcntl.LOCK_SH)  # as everybody does who asks for the status of a job that waits
    started.finish(first)
    until(lambda: started.queue.running == 0)
    time.sleep(0.25)
    assert started.names == ["first"]
    os.close(reader)
    until(lambda: started.names == ["first", "second"])


def test_a_full_disk_does_not_end_the_queue(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    first = started.submit("first")
    late = started.submit("late", StoppingCondition={"MaxWaitTimeInSeconds": 0})
    write, asked = JobRecord.write_status, []

    def full(record: JobRecord, status: dict[str, Any]) -> None:
        asked.append(record.name)
        if len(asked) < 3:
            raise RecordError("No space left on device")
        write(record, status)

    with monkeypatch.context() as patched:
        patched.setattr(JobRecord, "write_status", full)
        until(lambda: (late.stored_status() or {}).get("SecondaryStatus") == "MaxWaitTimeExceeded")
    started.submit("next")
    started.finish(first)
    until(lambda: started.names == ["first", "next"])


def test_a_job_that_cannot_be_stopped_for_a_full_disk_still_waits(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = started.submit("first"), started.submit("second")

    def full(record: JobRecord, status: dict[str, Any]) -> None:
        raise RecordError("No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(JobRecord, "write_status", full)
        with pytest.raises(RecordError):
            started.queue.withdraw("second")
    assert started.queue.withdraw("second")
    assert (second.stored_status() or {})["TrainingJobStatus"] == "Stopped"
    assert not started.queue.withdraw("second")
    started.finish(first)


def test_jobs_of_an_endpoint_wait_for_those_of_fit_in_the_same_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("FLEETFIT_HOME", str(home))
    write_archive(home / "s3" / "bucket" / "sourcedir.tar.gz", {"train.py": "print('its turn has come')"})
    first = running.start(
        "import signal; print('it runs', flush=True); signal.pause()", tmp_path, name="first", attached=False,
        queue="default", needs={"cores": 1_000_000},
    )  # fmt: skip
    jobs = Jobs(home, "us-east-1")
    queue = Queue(jobs, 16, os.environ, lambda line: None)
    training = Training(jobs, queue, Storage(EndpointFiles(home), home / "s3"), Local(queue="default"))
    try:
        until(lambda: first.status == "InProgress" and first.secondary_status == "Training")
        training.create(
            {
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
        )
        record = JobRecord.open("job", home)
        until(lambda: record.read_status()["SecondaryStatus"] == "Pending")
        message = record.read_status()["SecondaryStatusTransitions"][-1]["StatusMessage"]
        assert message.startswith("Waiting in the queue 'default', 1 of 1")
        first.stop(wait=True, grace=0.0)
        until(lambda: statuses.is_terminal(record.read_status()))
        assert b"its turn has come" in record.log_file("algo-1", "rank 0").read_bytes()
    finally:
        queue.close()
        clusters.kill_everything_of(home)
