"""A copy of a record is the record, whenever copying is interrupted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from container.contract.messages import encode
from container.contract.wire import Event, Piece
from estimators.job.errors import RecordError
from estimators.records import status as statuses
from estimators.records.logs import LogReader, LogWriter
from estimators.records.record import JobRecord
from estimators.records.replication import Changes, Replica
from estimators.records.states import SecondaryStatus

REQUEST = {"TrainingJobName": "job"}


@pytest.fixture
def there(tmp_path: Path) -> Iterator[JobRecord]:
    record = JobRecord.create("job", tmp_path / "there")
    record.write_status(statuses.new_status(REQUEST, 1.0))
    yield record
    record.release()


@pytest.fixture
def here(tmp_path: Path) -> Iterator[JobRecord]:
    record = JobRecord.create("job", tmp_path / "here")
    yield record
    record.release()


def say(record: JobRecord, *texts: str) -> None:
    writer = LogWriter(record)
    for text in texts:
        writer.write(Piece("algo-1", "rank 0", f"{text}\n".encode()))
        record.append_event(Event(kind="metric", host="algo-1", time_ns=1, data={"name": text}))
    writer.flush()


def copy(changes: Changes, replica: Replica, most: int = 1000) -> list[str]:
    """Bring over so many messages; returns their operations."""
    seen = []
    for message in changes.read():
        if len(seen) == most:
            break
        encode(message)  # each is within the bounds of a message
        seen.append(str(message["op"]))
        if message["op"] != "status":
            replica.take(message)
    return seen


def files(record: JobRecord) -> dict[str, bytes]:
    kept = ("events.jsonl", "hosts", "output", "checkpoints", "provenance.json")
    return {
        path.relative_to(record.path).as_posix(): path.read_bytes()
        for path in sorted(record.path.rglob("*"))
        if path.is_file() and path.relative_to(record.path).parts[0] in kept
    }


@pytest.mark.parametrize("most", [0, 1, 2, 3, 4, 1000])
def test_a_copy_goes_on_where_it_was_cut_off(most: int, there: JobRecord, here: JobRecord) -> None:
    say(there, "one", "two")
    there.write_json(there.provenance_file, {"git": "x" * 300_000})
    copy(Changes(there, Replica(here).have), Replica(here), most)
    say(there, "three")
    assert copy(Changes(there, Replica(here).have), Replica(here))[-1] == "status"
    assert files(here) == files(there)
    assert [line.text for lines in LogReader(here).drain(final=True) for line in lines] == ["one", "two", "three"]


def test_only_what_is_new_is_read(there: JobRecord, here: JobRecord) -> None:
    changes, replica = Changes(there, Replica(here).have), Replica(here)
    say(there, "one")
    assert "grow" in copy(changes, replica)
    assert copy(changes, replica) == []
    say(there, "two")
    assert copy(changes, replica) == ["grow", "grow", "grow"]  # events, the log, its times
    assert not changes.complete


def test_what_a_job_has_made_comes_at_its_end_once(there: JobRecord, here: JobRecord) -> None:
    model = there.output_dir / "model.tar.gz"
    model.write_bytes(os.urandom(600_000))
    (there.checkpoints_dir / "7").mkdir()
    (there.checkpoints_dir / "7" / "empty").touch()
    assert "make" not in copy(Changes(there, {}), Replica(here))
    there.write_status(
        statuses.transition(statuses.new_status(REQUEST, 1.0), SecondaryStatus.STOPPING, 2.0)
        | {"TrainingJobStatus": "Completed"}
    )
    copy(Changes(there, Replica(here).have), Replica(here), 1)  # cut off within the model
    changes = Changes(there, Replica(here).have)
    assert copy(changes, Replica(here))[-1] == "status"
    assert files(here) == files(there)
    assert not changes.complete  # its supervisor is still there
    there.release()
    copy(changes, Replica(here))
    assert changes.complete
    assert "make" not in copy(Changes(there, Replica(here).have), Replica(here))


@pytest.mark.parametrize(
    "path", ["../x", "output/../../x", "output", "status.json", "hosts/a/logs/attempt-0/../../../x.log", "/etc/x", 7]
)
@pytest.mark.parametrize("operation", ["grow", "put", "make"])
def test_nothing_is_written_that_is_no_part_of_a_record(operation: str, path: object, here: JobRecord) -> None:
    with pytest.raises(RecordError, match="not part of a job record"):
        Replica(here).take({"op": operation, "path": path, "at": 0, "data": "", "last": True, "changed": 1})


def test_a_piece_that_does_not_fit_is_refused(here: JobRecord) -> None:
    with pytest.raises(RecordError, match="does not end at byte 7"):
        Replica(here).take({"op": "grow", "path": "events.jsonl", "at": 7, "data": ""})
    with pytest.raises(RecordError, match="damaged"):
        Replica(here).take({"op": "grow", "path": "events.jsonl", "at": 0, "data": "%"})


def test_outputs_that_do_not_fit_here_are_told_and_nothing_else_is_lost(
    there: JobRecord, here: JobRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    (there.output_dir / "model.tar.gz").write_bytes(b"model")
    there.write_status({**statuses.new_status(REQUEST, 1.0), "TrainingJobStatus": "Completed"})
    here.output_dir.rmdir()
    here.output_dir.touch()  # in its way
    replica = Replica(here)
    assert copy(Changes(there, {}), replica)[-1] == "status"
    assert replica.lacks is not None and replica.lacks.startswith("output/model.tar.gz: ")
