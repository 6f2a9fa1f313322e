"""Phases from events alone."""

from __future__ import annotations

import pytest

from container.contract.wire import Event
from estimators.records.phases import PHASES, phases


def phase(name: str, seconds: float, *, host: str = "algo-1", rank: int | None = None, attempt: int = 0) -> Event:
    time_ns = int(seconds * 1e9)
    return Event(kind="phase", host=host, time_ns=time_ns, rank=rank, attempt=attempt, data={"name": name})


def test_a_script_that_reports_everything() -> None:
    events = [
        phase("job_created", 0.0),
        phase("supervisor_started", 0.1),
        phase("ranks_started", 0.5),
        phase("ranks_started", 0.6, host="algo-2"),
        *(phase("imported", 3.0 + rank, rank=rank) for rank in range(2)),
        *(phase("rendezvous", 5.0 + rank, rank=rank) for rank in range(2)),
        *(phase("first_step", 7.0 + rank, rank=rank) for rank in range(2)),
        phase("training_ended", 20.0, rank=0),
        phase("ranks_ended", 21.0),
        phase("job_ended", 21.5),
    ]
    assert phases(events) == pytest.approx(
        {"launch": 0.6, "import": 3.4, "rendezvous": 2.0, "first_step": 2.0, "training": 12.0, "teardown": 1.5}
    )


def test_a_foreign_script_trains_from_start_to_end() -> None:
    events = [
        phase("supervisor_started", 0.0),
        phase("ranks_started", 0.5),
        phase("ranks_ended", 4.5),
        phase("job_ended", 5.0),
    ]
    found = phases(events)
    assert found == {
        "launch": 0.5, "import": None, "rendezvous": None, "first_step": None, "training": 4.0, "teardown": 0.5
    }  # fmt: skip


def test_processes_tell_what_the_toolkit_does_not() -> None:
    events = [
        phase("job_created", 0.0),
        Event(kind="process_started", host="algo-1", time_ns=1_000_000_000, rank=0),
        Event(kind="process_started", host="algo-1", time_ns=500_000_000, data={"process": "mpirun"}),
        Event(kind="process_ended", host="algo-1", time_ns=3_000_000_000, rank=0),
    ]
    found = phases(events)
    assert (found["launch"], found["training"], found["teardown"]) == (1.0, 2.0, None)


def test_nothing_is_known_of_nothing() -> None:
    assert phases([]) == dict.fromkeys(PHASES)
    assert phases([Event(kind="phase", host="a", time_ns=1)])["training"] is None


def test_the_last_attempt_counts() -> None:
    events = [
        phase("job_created", 0.0),
        phase("ranks_started", 1.0),
        phase("ranks_ended", 9.0),
        phase("toolkit_started", 10.0, attempt=1),
        phase("ranks_started", 12.0, attempt=1),
        phase("ranks_ended", 15.0, attempt=1),
        phase("job_ended", 16.0),
    ]
    found = phases(events)
    assert (found["launch"], found["training"], found["teardown"]) == (2.0, 3.0, 1.0)


def test_clocks_that_differ_give_no_negative_times() -> None:
    events = [phase("job_created", 5.0), phase("ranks_started", 4.9), phase("ranks_ended", 4.8)]
    assert (phases(events)["launch"], phases(events)["training"]) == (0.0, 0.0)
