"""When an elastic training commits, and in which order it sees the records."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.distributed.tensorflow.committing import commit_interval
from container.distributed.tensorflow.elastic import order_seed, planned_size


@pytest.mark.parametrize(
    ("cost_s", "step_s", "elapsed_s", "failures", "steps"),
    [
        # While nothing fails, cheap commits take a thousandth of the time,
        (0.001, 0.01, 100, 0, 100),
        (0.004, 0.1, 100, 0, 40),
        # those that take long come at Young's interval: sqrt(2 * 0.5 * 3600) s,
        (0.5, 0.1, 100, 0, 600),
        # and those that cost nothing as often as ranks look for changes. Young: sqrt(2e-6 * 3600) s
        (1e-6, 0.01, 100, 0, 9),
        (1e-6, 5.0, 100, 0, 1),
        # Failures make them more frequent: sqrt(2 * 0.1 * 600 / n) / 0.1, rounded up
        (0.1, 0.1, 600, 1, 110),
        (0.1, 0.1, 600, 10, 35),
        (0.1, 0.1, 600, 100, 11),
    ],
)
def test_the_steps_between_commits(cost_s: float, step_s: float, elapsed_s: float, failures: int, steps: int) -> None:
    assert commit_interval(cost_s=cost_s, step_s=step_s, elapsed_s=elapsed_s, failures=failures) == steps


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
