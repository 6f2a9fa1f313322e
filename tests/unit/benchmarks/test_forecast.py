"""What the benchmark of forecasts makes of a job's record."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import forecast

S = 10**9


def event(kind: str, at_s: float, host: str = "supervisor", **data: Any) -> SimpleNamespace:
    return SimpleNamespace(kind=kind, time_ns=int(at_s * S), host=host, data=data)


def test_an_elastic_job() -> None:
    events = [
        event("resized", 104, size=3),
        event("resized", 106, size=2),
        # Both who are left tell of it.
        event("restored", 106, step=10, steps_lost=4),
        event("restored", 106, step=10, steps_lost=4),
        event("returned", 108, target="algo-4"),
        event("host_ready", 109, "algo-4"),
        event("worker_ready", 111, "algo-4"),
        event("resized", 111, size=3),
        event("phase", 120, name="elastic_finished"),
    ]
    found = forecast.elastic_run(100 * S, events, [[str(105 * S), "3"], [str(107 * S), "2"]])
    assert (found.seconds, found.resizes, found.joins) == (20.0, 2, ((1.0, 2.0),))
    assert found.lost_s == pytest.approx(4 * 0.2)
    assert [(step.at_s, step.size) for step in found.steps] == [(5.0, 3), (7.0, 2)]
    killed = forecast.elastic_timings([(1000, found)], 0.2)
    assert killed.loss_s == pytest.approx(1.8) and killed.start_s == 1.0 and killed.import_s == 2.0
    assert killed.rendezvous_s == pytest.approx(5.0 - 0.2 - 3.0)


def test_a_job_that_restarts() -> None:
    lines = [[str(at * S), kind, str(number)] for at, kind, number in (
        (101, "begin", 0), (102, "step", 1), (103, "step", 2), (109, "begin", 1), (110, "step", 2),
    )]  # fmt: skip
    found = forecast.gang_run(100 * S, [event("returned", 107), event("restart", 108)], lines)
    assert (found.seconds, found.resizes, found.joins) == (10.0, 1, ((2.0, 0.0),))
    assert found.lost_s == pytest.approx(0.2)
    timings = forecast.gang_timings([(1000, found)], 1.0)
    assert (timings.start_s, timings.restart_s) == (1.0, 2.0)


def test_jobs_that_tell_how_long_things_take_are_among_the_others_and_none_of_them() -> None:
    order = forecast.interleaved(range(6))
    assert order == [0, 1, 2, 3, 1000, 4, 5, 1001]


def test_the_deviation_is_that_of_the_means() -> None:
    assert forecast.deviation([1.0, 3.0], [3.0, 1.4]) == pytest.approx(0.1)
    assert forecast.deviation([0.0], [0.0]) == 0.0
