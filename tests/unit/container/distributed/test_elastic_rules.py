"""When an elastic training commits, and in which order it sees the records."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.distributed.tensorflow.committing import commit_interval
from container.distributed.tensorflow.elastic import order_seed, planned_size


def test_cheap_commits_take_a_thousandth_of_the_time_while_nothing_fails() -> None:
    assert commit_interval(cost_s=0.001, step_s=0.01, elapsed_s=100, failures=0) == 100
    assert commit_interval(cost_s=0.004, step_s=0.1, elapsed_s=100, failures=0) == 40


def test_commits_that_take_long_come_at_youngs_interval() -> None:
    assert commit_interval(cost_s=0.5, step_s=0.1, elapsed_s=100, failures=0) == 600  # sqrt(2 * 0.5 * 3600) s


def test_commits_that_cost_nothing_come_as_often_as_ranks_look_for_changes() -> None:
    assert commit_interval(cost_s=1e-6, step_s=0.01, elapsed_s=100, failures=0) == 9  # Young: sqrt(2e-6 * 3600) s
    assert commit_interval(cost_s=1e-6, step_s=5.0, elapsed_s=100, failures=0) == 1


def test_failures_make_commits_more_frequent() -> None:
    intervals = [commit_interval(cost_s=0.1, step_s=0.1, elapsed_s=600, failures=n) for n in (1, 10, 100)]
    assert intervals == sorted(intervals, reverse=True)
    assert intervals == [110, 35, 11]  # sqrt(2 * 0.1 * 600 / n) / 0.1, rounded up


@given(cost=st.floats(0, 100), step=st.floats(0, 100), elapsed=st.floats(0, 1e6), failures=st.integers(0, 1000))
def test_an_interval_is_always_one(cost: float, step: float, elapsed: float, failures: int) -> None:
    assert commit_interval(cost_s=cost, step_s=step, elapsed_s=elapsed, failures=failures) >= 1


def test_an_order_belongs_to_a_seed_and_an_epoch() -> None:
    seeds = [order_seed(seed, epoch) for seed in (None, 1, 2, 3) for epoch in range(50)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 1 << 31 for seed in seeds)


@pytest.mark.parametrize(("text", "size"), [("4", 4), ("", 2), ("x", 2), ("0", 2)])
def test_the_planned_size(text: str, size: int) -> None:
    assert planned_size({"FLEETFIT_ELASTIC_PLANNED": text}, 2) == size
