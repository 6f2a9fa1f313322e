"""The files of a queue."""

from __future__ import annotations

import shutil
from pathlib import Path

from estimators.job.queueing import ComputeResources, QueuedJob
from estimators.records.queues import JobQueue
from estimators.records.record import JobRecord


def test_a_job_whose_entry_was_removed_enters_its_queue_again(tmp_path: Path) -> None:
    record, machine = JobRecord.create("waiting", tmp_path), ComputeResources(cores=1)
    queue = JobQueue("default", tmp_path)
    entry = QueuedJob(job="waiting", priority=0, since=1.0, needs=machine)
    queue.enter(entry)
    shutil.rmtree(tmp_path / "queues")
    assert queue.take_turn(entry, machine)
    assert [(one.job, one.running) for one in queue.entries()] == [("waiting", True)]
    record.release()
