"""The record on disk: claiming, the lock, status, events, and what can go wrong with files."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from estimators.records import status as statuses
from estimators.records.record import JobRecord


@pytest.fixture
def record(tmp_path: Path) -> JobRecord:
    return JobRecord.create("job-1", tmp_path)


def hold_lock(record: JobRecord) -> subprocess.Popen[bytes]:
    """A child that holds the record's lock as a supervisor does, and nothing else."""
    assert record.lock_fd is not None
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], pass_fds=[record.lock_fd])
    record.release()
    return child


# --- the lock ---


def test_the_lock_passes_to_a_child_without_a_gap_and_ends_with_it(record: JobRecord, tmp_path: Path) -> None:
    reader = JobRecord.open("job-1", tmp_path)
    assert reader.is_supervised()
    record.write_status(statuses.new_status({"TrainingJobName": "job-1"}, time.time()))
    child = hold_lock(record)
    assert reader.is_supervised()
    assert reader.read_status()["TrainingJobStatus"] == "InProgress"
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert not reader.is_supervised()
    status = reader.read_status()
    assert status["TrainingJobStatus"] == "Failed"
    assert "supervisor lost" in status["FailureReason"]
    assert reader.read_status() == status  # it reads the same each time
    stored = reader.stored_status()
    assert stored is not None and stored["TrainingJobStatus"] == "InProgress"  # a reader does not write
