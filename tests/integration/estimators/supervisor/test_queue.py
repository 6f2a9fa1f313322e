"""Jobs that wait for their turn on this machine."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import clusters
import pytest
import running

from estimators import TrainingJob
from estimators.cli.main import main
from estimators.job.queueing import order
from estimators.records.queues import JobQueue

#: Says that it runs, and ends when it is told to.
WAITING = """
import os, time
here = os.environ["FOLDER"]
open(f"{here}/{os.environ['NAME']}.runs", "w").close()
while not os.path.exists(f"{here}/{os.environ['NAME']}.ends"):
    time.sleep(0.01)
"""

#: More than half of any machine: two of them never run at once.
MOST = {"cores": 1_000_000}


def queued(folder: Path, name: str, *, attached: bool = False, **options: object) -> TrainingJob:
    given = {"queue": "default", "needs": MOST, **options}
    environment = {"FOLDER": str(folder), "NAME": name}
    return running.start(WAITING, folder, name=name, attached=attached, environment=environment, **given)


def runs(folder: Path, name: str) -> None:
    clusters.until((folder / f"{name}.runs").exists)


def waits(job: TrainingJob) -> None:
    clusters.until(lambda: job.secondary_status == "Pending")


def said(job: TrainingJob, words: str) -> None:
    """Wait for what it says of its turn, which it says anew as others come and go."""
    waits(job)
    clusters.until(lambda: job.describe()["SecondaryStatusTransitions"][-1]["StatusMessage"].startswith(words))


def test_jobs_run_one_after_the_other_the_urgent_one_first(
    tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = queued(tmp_path, "first")
    runs(tmp_path, "first")
    second, third = queued(tmp_path, "second"), None
    said(second, "Waiting in the queue 'default', 1 of 1: the job needs 1e+06 cores, and 1 job is running")
    third = queued(tmp_path, "third", priority=5)
    waits(third)
    said(second, "Waiting in the queue 'default', 2 of 2")
    assert main(["queue"]) == 0
    rows = [line.split()[:4] for line in capsys.readouterr().out.splitlines()[1:]]
    assert rows == [
        ["default", "running", "first", "0"], ["default", "1", "third", "5"], ["default", "2", "second", "0"],
    ]  # fmt: skip
    (tmp_path / "first.ends").touch()
    runs(tmp_path, "third")
    assert first.status == "Completed" and second.secondary_status == "Pending"
    third.stop(wait=True, grace=0.0)
    runs(tmp_path, "second")
    (tmp_path / "second.ends").touch()
    second.wait(logs=False)
    assert second.status == "Completed"
    assert JobQueue("default", home).entries() == []
    assert main(["queue", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"default": []}
    assert main(["queue", "defautl"]) != 0
    assert "there is no queue 'defautl'; queues: default" in capsys.readouterr().err


def test_a_preemptible_job_makes_room_and_goes_on_afterwards_or_is_stopped(tmp_path: Path, home: Path) -> None:
    patient = queued(tmp_path, "patient", preemptible=True)
    runs(tmp_path, "patient")
    (tmp_path / "patient.runs").unlink()
    urgent = queued(tmp_path, "urgent", priority=1)
    runs(tmp_path, "urgent")
    said(patient, "Waiting in the queue 'default', 1 of 1")
    other = queued(tmp_path, "other", preemptible=True)  # of the same priority, and later
    waits(other)
    assert not (tmp_path / "patient.runs").exists()
    (tmp_path / "urgent.ends").touch()
    runs(tmp_path, "patient")
    assert urgent.status == "Completed" and other.secondary_status == "Pending"
    (tmp_path / "patient.ends").touch()
    patient.wait(logs=False)
    assert patient.status == "Completed"
    assert patient.result().attempts == 2
    runs(tmp_path, "other")

    # One that has made room can be stopped while it waits.
    urgent = queued(tmp_path, "urgent-2", priority=1)
    runs(tmp_path, "urgent-2")
    waits(other)
    other.stop(wait=True)
    assert other.status == "Stopped"
    urgent.stop(wait=True, grace=0.0)
    clusters.until(lambda: JobQueue("default", home).entries() == [])

    # Jobs that fit run together, and other queues are others.
    jobs = [
        queued(tmp_path, "one", needs={"cores": 0}), queued(tmp_path, "two", needs={"cores": 0}),
        queued(tmp_path, "three", queue="other"),
    ]  # fmt: skip
    for job in jobs:
        runs(tmp_path, job.name)
        assert job.status == "InProgress"
    for job in jobs:
        (tmp_path / f"{job.name}.ends").touch()
        job.wait(logs=False)


def test_who_is_stopped_killed_or_left_by_its_caller_keeps_nobody_waiting(tmp_path: Path, home: Path) -> None:
    first = queued(tmp_path, "first")
    runs(tmp_path, "first")
    stopped, tied, killed, last = (
        queued(tmp_path, name, attached=name == "tied") for name in ("stopped", "tied", "killed", "last")
    )
    queue = JobQueue("default", home)
    clusters.until(lambda: len(queue.entries()) == 5)
    stopped.stop(wait=True)
    assert stopped.status == "Stopped" and not (tmp_path / "stopped.runs").exists()
    assert tied._tie is not None
    tied._tie.close()  # as when its caller is gone
    clusters.until(lambda: tied.status == "Stopped")
    os.kill(killed.describe()["Fleetfit"]["supervisor_pid"], signal.SIGKILL)
    clusters.until(lambda: killed.status == "Failed")
    assert [one.job for one in order(queue.entries())] == ["last"]
    os.kill(first.describe()["Fleetfit"]["supervisor_pid"], signal.SIGKILL)
    runs(tmp_path, "last")
    (tmp_path / "last.ends").touch()
    last.wait(logs=False)
    assert last.status == "Completed"
    assert list(queue.path.glob("*.json")) == []
