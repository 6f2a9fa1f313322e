"""What the pages' pure parts make of events, lines and results."""

from __future__ import annotations

import pytest

from container.contract.wire import Event
from estimators.service.ui.access import Access
from estimators.service.ui.comparing import differences
from estimators.service.ui.curves import of_resources
from estimators.service.ui.following import _MAYBE, Wanted, level_of
from estimators.service.ui.timeline import Bar, Mark, host_lanes, length, phase_lanes

CREATED = 100.0


def event(
    kind: str, at: float, host: str = "algo-1", attempt: int = 0, rank: int | None = None, **data: object
) -> Event:
    return Event(kind=kind, host=host, time_ns=int((CREATED + at) * 1e9), rank=rank, attempt=attempt, data=data)


def test_each_attempt_has_its_phases_one_behind_the_other() -> None:
    events = [
        event("phase", 0, name="job_created"),
        event("phase", 1, name="ranks_started"),
        event("phase", 4, name="ranks_ended"),
        event("phase", 6, name="toolkit_started", attempt=1),
        event("phase", 7, name="ranks_started", attempt=1),
        event("phase", 8, name="imported", attempt=1),
        event("phase", 10, name="ranks_ended", attempt=1),
        event("phase", 11, name="job_ended"),
    ]
    first, second = phase_lanes(events, CREATED)
    assert (first.name, second.name) == ("attempt 1", "attempt 2")
    assert first.bars == (Bar("launch", 0, 1), Bar("training", 1, 4))
    assert second.bars == (Bar("launch", 6, 7), Bar("import", 7, 8), Bar("training", 8, 10), Bar("teardown", 10, 11))
    assert length([first, second]) == 11
    assert phase_lanes([], CREATED) == [] and length([]) == 1


def test_hosts_are_there_as_long_as_their_processes() -> None:
    events = [
        event("process_started", 1, "algo-2"),
        event("process_started", 2, "algo-2"),
        event("process_ended", 3, "algo-2"),
        event("process_started", 3, "algo-10"),
        event("process_ended", 5, "algo-2"),
        event("process_started", 8, "algo-2", attempt=1),
    ]
    second, tenth = host_lanes(events, CREATED, CREATED + 9)
    assert (second.name, tenth.name) == ("algo-2", "algo-10")
    assert second.bars == (Bar("host", 1, 5), Bar("host", 8, 9))
    assert tenth.bars == (Bar("host", 3, 9),)


def test_hosts_of_elastic_jobs_are_there_until_they_leave() -> None:
    events = [
        event("host_ready", 1, "algo-1"),
        event("process_started", 2, "algo-1"),
        event("process_ended", 3, "algo-1"),
        event("host_added", 4, "supervisor", name="algo-2"),
        event("notice", 5, "supervisor", name="algo-2", seconds=1.0),
        event("host_left", 6, "supervisor", name="algo-2", reason="it was told to"),
    ]
    first, second = host_lanes(events, CREATED, CREATED + 9)
    assert first.bars == (Bar("host", 1, 9),)
    assert second.bars == (Bar("host", 4, 6),)
    assert second.marks == (Mark("interrupted", 5), Mark("left", 6))


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("2026-11-21 10:00:00 ERROR it broke", "error"),
        ("E1121 10:00:00.1 1234 file.cc:1] it broke", "error"),
        ("2026-11-21 10:00:00.123456: E tensorflow/core/x.cc:12] it broke", "error"),
        ("Traceback (most recent call last):", "error"),
        ("ValueError: no", "error"),
        ("tensorflow.python.framework.errors_impl.InternalError: no", "error"),
        ("KeyboardInterrupt", "error"),
        ("/a/b.py:3: DeprecationWarning: old", "warning"),
        ("WARNING:tensorflow:old", "warning"),
        ("2026-11-21 10:00:00.123456: W tensorflow/core/x.cc:12] old", "warning"),
        ("epoch 3, error rate 0.2, errors: 3", ""),
        ("loss: 0.5", ""),
    ],
)
def test_a_line_says_how_severe_it_is(line: str, level: str) -> None:
    assert level_of(line) == level
    assert not level or _MAYBE.search(line.encode()), "what is looked for first is in every such line"


def test_a_level_has_the_more_severe_ones_too() -> None:
    assert Wanted(level="warning").fits("x", "error")
    assert not Wanted(level="error").fits("x", "warning")
    assert not Wanted(level="warning").fits("x", "")
    assert Wanted(text="LOSS").fits("the loss", "")
    assert not Wanted(text="loss", level="error").fits("the loss", "")


def test_resources_are_curves_by_rank_and_host() -> None:
    events = [
        event("resources", 1, rank=0, cpu_percent=50.0, memory_bytes=7),
        event("resources", 2, rank=0, attempt=1, cpu_percent=float("inf")),
        event("resources", 3, network_sent_bytes_per_s=1.5),
    ]
    assert of_resources(events, CREATED) == {
        "cpu_percent": {"rank 0": [[1.0], [50.0]], "rank 0, attempt 2": [[2.0], [None]]},
        "memory_bytes": {"rank 0": [[1.0], [7.0]]},
        "network_sent_bytes_per_s": {"algo-1": [[3.0], [1.5]]},
    }


def test_only_what_differs_is_told() -> None:
    facts = {"one": {"rate": "1", "seed": "3", "only": "here"}, "two": {"rate": "2", "seed": "3"}}
    assert differences(facts) == [("rate", ["1", "2"]), ("only", ["here", "–"])]
    assert differences({"one": facts["one"]}) == []


def test_a_link_becomes_one_cookie_and_forms_have_a_token_of_their_own() -> None:
    access = Access()
    cookie = access.redeem(access.token)
    assert cookie is not None and access.admits(cookie)
    assert access.redeem(access.token) is None
    assert access.admits_form(access.form_token)
    assert not any(map(access.admits_form, ("", cookie, access.token, "\udcff")))
