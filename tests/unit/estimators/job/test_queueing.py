"""Whose turn it is."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.contract import rules
from estimators.job.errors import ConfigurationError
from estimators.job.queueing import ComputeResources, QueuedJob, makes_room, order, starts
from estimators.job.request import RunOptions

MACHINE = ComputeResources(cores=4, gpus=1, memory_gb=8)


def entry(
    job: str, cores: float = 1, *, running: bool = False, priority: int = 0, since: float = 0, **needs: float
) -> QueuedJob:
    wanted = ComputeResources(cores=cores, **needs)
    return QueuedJob(job=job, priority=priority, since=since, needs=wanted, running=running)


def test_the_next_one_starts_when_there_is_room() -> None:
    running = entry("a", 3, running=True)
    assert starts([running, entry("b", 1)], "b", MACHINE)
    assert not starts([running, entry("b", 2)], "b", MACHINE)
    assert not starts([running, entry("b", 1, gpus=2)], "b", MACHINE)
    assert not starts([entry("a", 1, running=True, memory_gb=6), entry("b", 1, memory_gb=3)], "b", MACHINE)


def test_nobody_overtakes_one_that_is_ahead() -> None:
    entries = [entry("a", 3, running=True), entry("large", 4, since=1), entry("small", 1, since=2)]
    assert not starts(entries, "large", MACHINE)
    assert not starts(entries, "small", MACHINE)


def test_higher_priorities_go_first_and_then_earlier_jobs() -> None:
    entries = [entry("late", since=3), entry("early", since=1), entry("urgent", since=9, priority=5)]
    assert [one.job for one in order(entries)] == ["urgent", "early", "late"]
    assert starts(entries, "urgent", MACHINE) and not starts(entries, "early", MACHINE)


def test_a_job_that_needs_more_than_there_is_runs_alone() -> None:
    assert starts([entry("huge", 99)], "huge", MACHINE)
    assert not starts([entry("huge", 99), entry("a", running=True)], "huge", MACHINE)


def test_the_least_urgent_and_latest_make_room_where_it_helps() -> None:
    old, new, safe = (
        dataclasses.replace(entry(name, 2, running=True, since=since), preemptible=name != "safe")
        for name, since in (("old", 1), ("new", 2), ("safe", 3))
    )
    urgent = entry("urgent", 2, priority=1, since=9)

    def going(*entries: QueuedJob) -> list[str]:
        return [one.job for one in entries if makes_room(entries, one.job, MACHINE)]

    assert going(old, new, urgent) == ["new"]
    assert going(old, new, dataclasses.replace(urgent, needs=ComputeResources(cores=4))) == ["old", "new"]
    assert going(old, safe, urgent) == ["old"]
    assert going(old, safe, dataclasses.replace(urgent, needs=ComputeResources(cores=3))) == [], "it would not help"
    assert going(old, urgent) == [], "there is room"
    assert going(old, new, dataclasses.replace(urgent, priority=0)) == []
    assert going(old, dataclasses.replace(new, priority=-1, since=0), urgent) == ["new"]
    assert going(old, new) == []


def test_one_that_runs_already_or_is_unknown_does_not_start() -> None:
    assert not starts([entry("a", running=True)], "a", MACHINE)
    assert not starts([], "a", MACHINE)


JOBS = st.tuples(st.sampled_from([0, 0.5, 1, 2, 3, 9]), st.integers(-2, 2), st.integers(0, 5))


@given(st.lists(JOBS, min_size=1, max_size=8))
def test_everyone_gets_a_turn_and_the_machine_is_never_exceeded_by_two(jobs: list[tuple[float, int, int]]) -> None:
    waiting = [entry(f"j{n}", cores, priority=p, since=s) for n, (cores, p, s) in enumerate(jobs)]
    expected = [one.job for one in order(waiting)]
    running: list[QueuedJob] = []
    started: list[str] = []
    while waiting or running:
        chosen = [one for one in waiting if starts([*waiting, *running], one.job, MACHINE)]
        assert len(chosen) <= 1
        if chosen:
            waiting.remove(chosen[0])
            running.append(entry(chosen[0].job, chosen[0].needs.cores, running=True))
            started.append(chosen[0].job)
        else:
            assert running, "somebody waits, and nothing runs"
            running.pop(0)
        assert len(running) == 1 or sum(one.needs.cores for one in running) <= MACHINE.cores
    assert started == expected


def test_an_entry_is_read_back() -> None:
    one = entry("a", 2, gpus=1, memory_gb=0.5, priority=-3, since=1.5)
    assert QueuedJob.from_dict(dataclasses.asdict(one)) == one
    assert str(one.needs) == "2 cores, 1 GPU, 0.5 GB"
    assert str(ComputeResources()) == "nothing"


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"queue": "a b"}, "the name of a queue"),
        ({"queue": "../up"}, "the name of a queue"),
        ({"queue": ""}, "is not the name of a queue"),
        ({"queue": "q", "priority": 1.5}, "a whole number"),
        ({"queue": "q", "priority": 1001}, "a whole number"),
        ({"queue": "q", "priority": True}, "a whole number"),
        ({"queue": "q", "needs": {"core": 1}}, "Did you mean 'cores'"),
        ({"queue": "q", "needs": {"cores": -1}}, "a number from 0"),
        ({"queue": "q", "needs": {"cores": float("nan")}}, "a number from 0"),
        ({"queue": "q", "needs": 3}, "a dict"),
        ({"priority": 1}, "add queue='default'"),
        ({"needs": {"cores": 1}}, "add queue='default'"),
        ({"preemptible": True}, "add queue='default'"),
        ({"queue": "q", "preemptible": 1}, "True or False"),
    ],
)
def test_wrong_options_are_refused(values: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        RunOptions(**values)  # type: ignore[arg-type]
    assert text in str(caught.value)


def test_options_read_back() -> None:
    options = RunOptions(queue="default", priority=3, needs={"cores": 2})
    assert rules.from_dict(RunOptions, json.loads(json.dumps(rules.to_dict(options)))) == options
