"""When to save, and what stays: pure decisions."""

from __future__ import annotations

import datetime
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.checkpoint.interval import MIN_AUTO_S, Every, Schedule, Unit
from container.checkpoint.retention import Best, doomed


@pytest.mark.parametrize(
    ("given_value", "unit", "amount"),
    [
        (100, Unit.STEPS, 100),
        ("100 steps", Unit.STEPS, 100),
        ("1 batch", Unit.STEPS, 1),
        ("30s", Unit.SECONDS, 30),
        ("0.5 s", Unit.SECONDS, 0.5),
        ("5 min", Unit.SECONDS, 300),
        ("1h", Unit.SECONDS, 3600),
        ("epoch", Unit.EPOCHS, 1),
        (" 2 Epochs ", Unit.EPOCHS, 2),
        ("auto", Unit.AUTO, 1),
        (datetime.timedelta(minutes=1), Unit.SECONDS, 60),
        (Every(Unit.STEPS, 5), Unit.STEPS, 5),
    ],
)
def test_intervals(given_value: object, unit: Unit, amount: float) -> None:
    every = Every.parse(given_value)  # type: ignore[arg-type]
    assert (every.unit, every.amount) == (unit, amount)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (0, "more than 0"),
        (-5, "more than 0"),
        (True, "'30s'"),
        (1.5, "'30s'"),
        (None, "'30s'"),
        ("", "'30s'"),
        ("10", "'30s'"),
        ("1.5 steps", "whole number of steps"),
        ("3 epoch s", "'30s'"),
        ("3 epoks", "Did you mean 'epochs'"),
        ("0s", "more than 0"),
    ],
)
def test_intervals_that_are_none(wrong: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Every.parse(wrong)  # type: ignore[arg-type]


class Clock:
    """Time that passes when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_every_so_many_steps() -> None:
    schedule = Schedule(Every.parse(10))
    schedule.start(0)
    assert [step for step in range(1, 35) if schedule.due(step) and not schedule.saved(step, blocked_s=0)] == [
        10,
        20,
        30,
    ]
    # Several steps at once, and going on from a step in between.
    schedule.start(13)
    assert not schedule.due(19) and schedule.due(22)


def test_every_so_many_epochs() -> None:
    schedule = Schedule(Every.parse("2 epochs"))
    schedule.start(0)
    assert not schedule.due(100)
    assert [epoch for epoch in range(1, 7) if schedule.due(epoch * 10, finished_epoch=epoch)] == [2, 4, 6]


def test_every_so_many_seconds() -> None:
    clock = Clock()
    schedule = Schedule(Every.parse("30s"), clock=clock)
    schedule.start(0)
    clock.now += 29
    assert not schedule.due(1)
    clock.now += 1
    assert schedule.due(2)
    schedule.saved(2, blocked_s=0)
    assert not schedule.due(3)


@given(
    snapshot_s=st.floats(0.0001, 3),
    write_s=st.floats(0.001, 20),
    share=st.floats(0.05, 1),
    step_s=st.floats(0.001, 1),
    budget=st.sampled_from([0.01, 0.03]),
)
def test_auto_keeps_to_its_budget(
    snapshot_s: float, write_s: float, share: float, step_s: float, budget: float
) -> None:
    clock = Clock()
    schedule = Schedule(Every.parse("auto"), budget=budget, clock=clock)
    schedule.start(0)
    costs, times = [], []
    for step in range(1, 4000):
        clock.now += step_s
        if schedule.due(step):
            times.append(clock.now)
            clock.now += snapshot_s
            schedule.saved(step, blocked_s=snapshot_s)
            clock.now += write_s * share  # the training has lost the processor
            schedule.written(write_s=write_s, processor_s=write_s * share)
            costs.append(snapshot_s + write_s * share)
    # Once the cost is known. A step is as fine as time gets.
    for cost, begin, end in zip(costs, times, times[1:], strict=False):
        assert cost <= budget * (end - begin) * 1.001
        assert end - begin <= max(MIN_AUTO_S, cost / budget, 4 * write_s) + cost + step_s * 1.001


def test_auto_guesses_the_first_cost_from_the_size() -> None:
    clock = Clock()
    schedule = Schedule(Every.parse("auto"), clock=clock)
    schedule.start(3)
    clock.now += 50
    schedule.expect(500_000_000)
    assert not schedule.due(4)
    clock.now += 51
    assert schedule.due(5)
    steps = Schedule(Every.parse(1))
    steps.start(0)
    steps.expect(500_000_000)
    assert steps.due(1)


def test_what_the_writer_computes_is_part_of_the_cost() -> None:
    """All of it: the training's step is as late as the processor that was taken from it."""
    schedule = Schedule(Every.parse("auto"), budget=0.01)
    schedule.saved(1, blocked_s=0.025)
    assert schedule.interval_s == 2.5
    schedule.written(write_s=0.3, processor_s=0.1)
    assert schedule.interval_s == 12.5


def test_budget_is_a_share() -> None:
    for wrong in (0, 1, -1, 3.5, "x"):
        with pytest.raises(ValueError, match="budget"):
            Schedule(Every.parse("auto"), budget=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "metric", "mode"),
    [
        ("val_loss", "val_loss", "min"),
        ("val_accuracy", "val_accuracy", "max"),
        ("root_mean_squared_error", "root_mean_squared_error", "min"),
        ("max f1", "f1", "max"),
        ("min val_accuracy", "val_accuracy", "min"),
    ],
)
def test_best(text: str, metric: str, mode: str) -> None:
    assert Best.parse(text) == Best(metric=metric, mode=mode)


def test_best_that_cannot_be_told() -> None:
    assert Best.parse(None) is None
    with pytest.raises(ValueError, match="'max f1' or 'min f1'"):
        Best.parse("f1")
    with pytest.raises(ValueError, match="'min' or 'max'"):
        Best.parse("most val_loss")
    with pytest.raises(ValueError, match="val_loss"):
        Best.parse(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="keep"):
        Best(metric="a", mode="min", keep=0)


NAMES = [f"c{index}" for index in range(8)]


@given(
    count=st.integers(0, 8),
    keep=st.integers(1, 5),
    values=st.dictionaries(st.sampled_from(NAMES), st.floats(allow_nan=True), max_size=8),
    referenced=st.sets(st.sampled_from(NAMES)),
    damaged=st.sets(st.sampled_from(NAMES)),
    best=st.sampled_from([None, Best(metric="m", mode="max"), Best(metric="m", mode="min", keep=2)]),
)
def test_what_must_stay_stays(
    count: int, keep: int, values: dict[str, float], referenced: set[str], damaged: set[str], best: Best | None
) -> None:
    names = NAMES[:count]
    metrics = {name: {"m": values[name]} for name in names if name in values}
    chosen = doomed(names, keep=keep, best=best, metrics=metrics, referenced=referenced, damaged=damaged)
    left = [name for name in names if name not in chosen]
    sound = [name for name in names if name not in damaged]
    assert set(chosen) <= set(names) - referenced
    assert left[-keep:] == [] or set(sound[-keep:]) <= set(left)
    if best is not None:
        rated = {name: values[name] for name in sound if name in values and not math.isnan(values[name])}
        if rated:
            extreme = max(rated.values()) if best.mode == "max" else min(rated.values())
            assert extreme in {rated.get(name) for name in left}
    # And no more than that: what is left has a reason.
    if sound:
        for name in left:
            is_new = names.index(name) >= names.index(sound[-keep:][0])
            is_best = best is not None and name in values
            assert is_new or name in referenced or is_best
    assert doomed(names, keep=None, best=best, metrics=metrics) == []
