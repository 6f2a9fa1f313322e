"""Where a job stands, and what may happen there."""

from __future__ import annotations

import itertools

import pytest

from estimators.supervisor.lifecycle import TRANSITIONS, Happening, Stage
from estimators.supervisor.transitions import IllegalTransition

FAILURE, STOP, RETRY, RESTART, COLLECT, FINISH = Happening


@pytest.mark.parametrize(
    ("happenings", "stages"),
    [
        ([COLLECT, FINISH], [Stage.COLLECTING, Stage.OVER]),
        ([FAILURE, COLLECT, FINISH], [Stage.FAILING, Stage.FAILING, Stage.OVER]),
        ([FAILURE, RETRY, RESTART, COLLECT], [Stage.FAILING, Stage.WAITING, Stage.RUNNING, Stage.COLLECTING]),
        ([RETRY, STOP, COLLECT], [Stage.WAITING, Stage.STOPPING, Stage.STOPPING]),
        ([STOP, COLLECT, FINISH], [Stage.STOPPING, Stage.STOPPING, Stage.OVER]),
        ([STOP, FAILURE, COLLECT, FINISH], [Stage.STOPPING, Stage.ENDING, Stage.ENDING, Stage.OVER]),
        ([COLLECT, STOP, FINISH], [Stage.COLLECTING, Stage.STOPPING, Stage.OVER]),
        ([COLLECT, FAILURE, FINISH], [Stage.COLLECTING, Stage.FAILING, Stage.OVER]),
    ],
)
def test_the_course_of_a_job(happenings: list[Happening], stages: list[Stage]) -> None:
    stage = Stage.RUNNING
    for happening, following in zip(happenings, stages, strict=True):
        stage = TRANSITIONS.following(stage, happening)
        assert stage is following


def test_what_is_not_in_the_table_names_both() -> None:
    for stage, happening in set(itertools.product(Stage, Happening)) - set(TRANSITIONS):
        with pytest.raises(IllegalTransition, match=f"^{happening.name} cannot happen to a job that is {stage.name}"):
            TRANSITIONS.following(stage, happening)


def test_a_job_that_is_over_stays_so_and_every_other_can_end() -> None:
    for stage in Stage:
        ends = {happening: after for (before, happening), after in TRANSITIONS.items() if before is stage}
        assert ends.get(FINISH) is (None if stage is Stage.OVER else Stage.OVER)
        assert stage is Stage.OVER or FAILURE in ends  # something may fail at any time
        assert not (stage is Stage.OVER and ends)


def test_a_job_that_is_to_stop_is_not_started_again() -> None:
    reached = {Stage.STOPPING}
    while more := {after for (stage, _), after in TRANSITIONS.items() if stage in reached} - reached:
        reached |= more
    assert reached == {Stage.STOPPING, Stage.ENDING, Stage.OVER}
    assert {stage for stage in Stage if stage.is_stopping} == reached - {Stage.OVER}


def test_nothing_is_started_where_the_end_has_begun() -> None:
    assert {stage for stage in Stage if stage.is_ending} == {Stage.FAILING, Stage.ENDING, Stage.OVER}
    assert [stage for (stage, happening) in TRANSITIONS if happening is RESTART] == [Stage.WAITING]
