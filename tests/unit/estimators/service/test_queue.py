"""The queue goes on whatever happens to a job that waits, and loses none."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from container.system import locks
from estimators.client import launch
from estimators.job.errors import RecordError
from estimators.records import status as statuses
from estimators.records.record import JobRecord
from estimators.records.states import SecondaryStatus
from estimators.service.queue import EndpointQueue
from estimators.service.records import Jobs


class Supervisor:
    """Stands for a supervisor that has just begun."""

    def poll(self) -> None: ...


class Started:
    """A queue for one job at a time whose jobs are not run.

    Attributes:
        names: The jobs that were started, in their order.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self.names: list[str] = []
        self.records: list[JobRecord] = []
        self.told: list[str] = []
        self.queue = EndpointQueue(Jobs(home, "us-east-1"), 1, {}, self.told.append)

    def start(self, record: JobRecord, environment: Any) -> Supervisor:
        """Start no supervisor; the record stays locked, as by one."""
        self.names.append(record.name)
        return Supervisor()

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
    yield queue
    for record in queue.records:
        record.release()


def test_a_job_that_was_removed_while_it_waited_holds_up_nobody(started: Started) -> None:
    first = started.submit("first")
    shutil.rmtree(started.submit("second").path)
    started.submit("third")
    started.finish(first)
    started.queue._look()
    assert started.names == ["first", "third"]
    assert any("second was not started" in line for line in started.told)


def test_a_job_whose_lock_is_looked_at_when_its_turn_comes_is_started_later(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "_ASKING_S", 0.0)  # nobody lets go of it meanwhile
    first, second = started.submit("first"), started.submit("second")
    reader = os.open(second.lock_file, os.O_RDONLY)
    fcntl.flock(reader, fcntl.LOCK_SH)  # as everybody does who asks for the status of a job that waits
    started.finish(first)
    started.queue._look()
    assert started.queue.running == 0 and started.names == ["first"]
    os.close(reader)
    started.queue._look()
    assert started.names == ["first", "second"]


def test_a_full_disk_ends_neither_the_queue_nor_a_job_that_waits(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = started.submit("first"), started.submit("second")
    late = started.submit("late", StoppingCondition={"MaxWaitTimeInSeconds": 0})

    def full(record: JobRecord, status: dict[str, Any]) -> None:
        raise RecordError("No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(JobRecord, "write_status", full)
        started.queue._look()
        with pytest.raises(RecordError):
            started.queue.withdraw("second")
    started.queue._look()
    assert (late.stored_status() or {})["SecondaryStatus"] == "MaxWaitTimeExceeded"
    assert started.queue.withdraw("second")
    assert (second.stored_status() or {})["TrainingJobStatus"] == "Stopped"
    assert not started.queue.withdraw("second")
    started.submit("next")
    started.finish(first)
    started.queue._look()
    assert started.names == ["first", "next"]
