"""The record on disk: claiming, the lock, status, events, and what can go wrong with files."""

from __future__ import annotations

import concurrent.futures
import errno
import fcntl
import json
import os
import stat
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.contract.wire import Event
from estimators.job.errors import ConfigurationError, JobExistsError, JobNotFoundError, RecordError
from estimators.records import record as records
from estimators.records import status as statuses
from estimators.records.log_files import log_stem, process_of
from estimators.records.private_files import explained
from estimators.records.record import JobRecord, job_names
from estimators.records.states import SecondaryStatus


def test_a_name_is_claimed_once(record: JobRecord, tmp_path: Path) -> None:
    with pytest.raises(JobExistsError, match="'job-1' exists already"):
        JobRecord.create("job-1", tmp_path)
    assert job_names(tmp_path) == ["job-1"]
    assert not [name for name in os.listdir(tmp_path / "jobs") if name.startswith(".")]


def test_of_many_creators_at_once_one_wins(tmp_path: Path) -> None:
    def create(_: int) -> bool:
        try:
            JobRecord.create("same", tmp_path).release()
        except JobExistsError:
            return False
        return True

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(create, range(64))) == 1


@pytest.mark.parametrize("name", ["", "-a", "a-", "a_b", "a/b", "..", "a" * 64, "é"])
def test_a_name_that_sagemaker_would_refuse_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"is not valid\. As on SageMaker, a name has 1 to 63 letters"):
        JobRecord.create(name, tmp_path)
    with pytest.raises(JobNotFoundError):
        JobRecord.open(name, tmp_path)
    assert not (tmp_path / "jobs").exists()


def test_an_unknown_job_is_refused_with_the_nearest_name(record: JobRecord, tmp_path: Path) -> None:
    with pytest.raises(JobNotFoundError, match="Did you mean 'job-1'"):
        JobRecord.open("jobb-1", tmp_path)


def test_everything_is_the_users_alone(record: JobRecord, tmp_path: Path) -> None:
    record.write_status(statuses.new_status({"TrainingJobName": "job-1"}, 1.0))
    record.append_event(Event(kind="phase", host="algo-1"))
    for path in (tmp_path / "jobs").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_an_unwritable_home_is_named_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises((RecordError, JobExistsError), match="file"):
        JobRecord.create("job-1", tmp_path / "file")
    with pytest.raises(RecordError, match=r"cannot create /proc/nowhere/jobs/job-1.*FLEETFIT_HOME"):
        JobRecord.create("job-1", "/proc/nowhere")


def test_the_home_is_taken_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEETFIT_HOME", str(tmp_path / "home"))
    record = JobRecord.create("job-1")
    assert record.path == tmp_path / "home" / "jobs" / "job-1"
    record.release()
    assert JobRecord.open("job-1").home == tmp_path / "home"


def test_two_readers_do_not_take_each_other_for_a_supervisor(record: JobRecord, tmp_path: Path) -> None:
    record.release()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        readers = [JobRecord.open("job-1", tmp_path) for _ in range(8)]
        assert not any(pool.map(lambda reader: any(reader.is_supervised() for _ in range(200)), readers))


def test_a_job_that_has_ended_stays_what_it_was(record: JobRecord, tmp_path: Path) -> None:
    status = statuses.new_status({"TrainingJobName": "job-1"}, 1.0)
    for step in (SecondaryStatus.TRAINING, SecondaryStatus.COMPLETED):
        status = statuses.transition(status, step, 2.0)
    record.write_status(status)
    record.release()
    assert JobRecord.open("job-1", tmp_path).read_status() == status


def test_a_creator_that_died_leaves_a_failed_job(record: JobRecord) -> None:
    assert record.read_status()["SecondaryStatus"] == "Starting"  # it is about to write the status
    record.release()
    assert record.read_status()["TrainingJobStatus"] == "Failed"


def test_the_end_of_the_supervisors_log_says_why_it_was_lost(record: JobRecord) -> None:
    record.supervisor_log.write_text("Traceback\nImportError: no module named x\n")
    record.release()
    failure = statuses.failure_of(record.read_status())
    assert failure is not None and "no module named x" in (failure.log_tail or "")


def test_a_discarded_name_is_free_again(record: JobRecord, tmp_path: Path) -> None:
    record.discard()
    assert job_names(tmp_path) == []
    JobRecord.create("job-1", tmp_path).release()


# --- files ---


def test_readers_always_see_a_whole_status(record: JobRecord, tmp_path: Path) -> None:
    reader = JobRecord.open("job-1", tmp_path)
    status = statuses.new_status({"TrainingJobName": "job-1"}, 1.0)
    record.write_status(status)

    def write() -> None:
        for number in range(300):
            record.write_status({**status, "padding": "x" * (number * 37 % 20000)})

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        while not writing.done():
            assert reader.read_status()["TrainingJobName"] == "job-1"
        writing.result()


def test_the_last_status_is_written_on_a_full_disk(record: JobRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    status = statuses.new_status({"TrainingJobName": "job-1"}, 1.0)
    record.write_status(status)
    write, reserve = os.write, record.path / ".reserve"

    def full(descriptor: int, data: bytes) -> int:
        if reserve.stat().st_size > 100_000:  # somebody else was quicker the first time
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", full)
    record.write_status(statuses.transition(status, SecondaryStatus.FAILED, 2.0))
    assert record.read_status()["TrainingJobStatus"] == "Failed"
    assert 0 < reserve.stat().st_size < 100_000  # and there is some left for a next time


def test_a_full_disk_is_named_with_file_and_remedy(record: JobRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    status = statuses.new_status({"TrainingJobName": "job-1"}, 1.0)
    record.write_status(status)

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(RecordError, match=r"status\.json: No space left on device.*fleetfit clean"):
            record.write_status({})
        with pytest.raises(RecordError, match=r"events\.jsonl"):
            record.append_event(Event(kind="phase", host="algo-1"))
    assert record.read_status() == status
    assert not [name for name in os.listdir(record.path) if "status.json." in name]
    record.append_event(Event(kind="later", host="algo-1"))
    assert [event.kind for event in record.events()] == ["later"]


@pytest.mark.parametrize(("number", "remedy"), [(errno.EFBIG, "ulimit -f"), (errno.EMFILE, "ulimit -n")])
def test_a_limit_is_named_with_the_command_that_raises_it(number: int, remedy: str, tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=rf"Raise the limit \(`{remedy}`\)"), explained(tmp_path, "write"):
        raise OSError(number, os.strerror(number))


def test_a_torn_event_is_left_out(record: JobRecord) -> None:
    events = [Event(kind="phase", host="algo-1", data={"name": str(number)}) for number in range(3)]
    record.append_events(events[:2])
    with record.events_file.open("ab") as file:
        file.write(b'{"kind":"phase","ho')
    assert list(record.events()) == events[:2]
    with record.events_file.open("ab") as file:
        file.write(b"\nnot json\n[1]\n")
    record.append_event(events[2])
    assert list(record.events()) == events
    assert list(record.events("metric")) == []
    assert list(record.events("phase")) == events


def test_a_record_of_a_newer_version_is_refused_by_name(record: JobRecord) -> None:
    status = statuses.with_own(statuses.new_status({"TrainingJobName": "job-1"}, 1.0), record_version=99)
    record.write_status(status)
    with pytest.raises(RecordError, match=r"newer fleetfit: its record version is 99"):
        record.read_status()


def test_unknown_keys_of_a_newer_version_do_no_harm(record: JobRecord) -> None:
    status = statuses.new_status({"TrainingJobName": "job-1"}, 1.0)
    record.write_status({**status, "NewKey": 1})
    record.events_file.write_text(json.dumps({"kind": "phase", "host": "a", "time_ns": 1, "new": 2}) + "\n")
    assert record.read_status()["NewKey"] == 1
    assert [event.kind for event in record.events()] == ["phase"]


def test_a_damaged_file_is_named(record: JobRecord) -> None:
    record.status_file.write_text("{")
    with pytest.raises(RecordError, match=r"status\.json is damaged"):
        record.read_status()


# --- names of log files ---


@pytest.mark.parametrize(
    ("process", "stem"),
    [(None, "toolkit"), ("rank 3", "rank-3"), ("ps", "ps"), ("toolkit", "%74oolkit"), ("../x", "%2E.%2Fx")],
)
def test_log_files_are_named_after_their_process(process: str | None, stem: str) -> None:
    assert log_stem(process) == stem
    assert process_of(stem) == process


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_every_process_name_reads_back(process: str) -> None:
    stem = log_stem(process)
    assert process_of(stem) == process
    assert "/" not in stem and not stem.startswith(".")


@pytest.mark.parametrize("host", ["..", "", "a/b", ".hidden"])
def test_a_host_cannot_lead_out_of_the_record(record: JobRecord, host: str) -> None:
    with pytest.raises(ValueError, match="not a host's name"):
        record.tree(host)


def test_hosts_are_in_natural_order(record: JobRecord) -> None:
    for number in (10, 2, 1):
        record.host_dir(f"algo-{number}").mkdir()
    assert record.hosts == ["algo-1", "algo-2", "algo-10"]


def test_the_default_home_is_in_the_users_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLEETFIT_HOME", raising=False)
    assert records.jobs_folder() == Path.home() / ".fleetfit" / "jobs"


def test_who_only_asks_whether_a_record_is_held_does_not_hold_it(tmp_path: Path) -> None:
    """``fleetfit list`` in another window made a ``resume()`` fail."""
    record = JobRecord.create("job", tmp_path)
    record.release()
    asked = os.open(record.lock_file, os.O_RDONLY)
    fcntl.flock(asked, fcntl.LOCK_SH | fcntl.LOCK_NB)
    taken: list[bool] = []
    taker = threading.Thread(target=lambda: taken.append(record.lock()))
    taker.start()
    os.close(asked)
    taker.join()
    assert taken == [True]
    assert not JobRecord.open("job", tmp_path).lock()
    record.release()
