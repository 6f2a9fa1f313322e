"""States and status: SageMaker's values, one table of transitions, DescribeTrainingJob's shape."""

from __future__ import annotations

from typing import Any

import pytest

from container.contract.failures import Cause, Failure
from estimators.records import status as statuses
from estimators.records.states import MESSAGES, TRANSITIONS, SecondaryStatus, TrainingJobStatus

S = SecondaryStatus


def walk(*steps: SecondaryStatus, each: float = 1.5) -> dict[str, Any]:
    status = statuses.new_status({"TrainingJobName": "job"}, 100.0)
    for number, step in enumerate(steps, 1):
        status = statuses.transition(status, step, 100.0 + number * each)
    return status


def test_the_values_are_sagemakers() -> None:
    session = pytest.importorskip("botocore.session")
    model = session.get_session().get_service_model("sagemaker")
    assert {item.value for item in TrainingJobStatus} <= set(model.shape_for("TrainingJobStatus").enum)
    assert {item.value for item in SecondaryStatus} <= set(model.shape_for("SecondaryStatus").enum)


def test_a_status_has_only_members_that_describe_training_job_has() -> None:
    session = pytest.importorskip("botocore.session")
    shape = session.get_session().get_service_model("sagemaker").shape_for("DescribeTrainingJobResponse")
    failed = statuses.fail(walk(S.TRAINING), Failure(cause=Cause.PROCESS, message="x"), 200.0)
    assert set(failed) - {statuses.OWN} <= set(shape.members)
    assert set(failed["SecondaryStatusTransitions"][0]) <= set(
        shape.members["SecondaryStatusTransitions"].member.members
    )


def test_the_table_is_complete_and_ends() -> None:
    assert set(TRANSITIONS) == set(SecondaryStatus) == set(MESSAGES)
    for state, following in TRANSITIONS.items():
        assert state.is_terminal == (not following)
        assert state.is_terminal == state.primary().is_terminal
        assert state not in following
        if not state.is_terminal:
            assert SecondaryStatus.FAILED in following


def test_a_whole_job() -> None:
    status = walk(S.DOWNLOADING, S.TRAINING, S.UPLOADING, S.COMPLETED)
    assert status["TrainingJobStatus"] == "Completed"
    assert status["SecondaryStatus"] == "Completed"
    names = [entry["Status"] for entry in status["SecondaryStatusTransitions"]]
    assert names == ["Starting", "Downloading", "Training", "Uploading", "Completed"]
    for entry, after in zip(
        status["SecondaryStatusTransitions"], status["SecondaryStatusTransitions"][1:], strict=False
    ):
        assert entry["EndTime"] == after["StartTime"]
    assert (status["TrainingStartTime"], status["TrainingEndTime"]) == (101.5, 106.0)
    assert (status["TrainingTimeInSeconds"], status["BillableTimeInSeconds"]) == (5, 5)


def test_training_time_is_never_zero() -> None:
    assert walk(S.TRAINING, S.COMPLETED, each=0.0)["TrainingTimeInSeconds"] == 1


def test_interruptions_are_not_billed() -> None:
    status = walk(S.TRAINING, S.INTERRUPTED, S.STARTING, S.TRAINING, S.COMPLETED, each=10.0)
    assert (status["TrainingTimeInSeconds"], status["BillableTimeInSeconds"]) == (40, 30)


def test_a_job_that_is_stopped_stays_stopping_while_it_uploads() -> None:
    status = walk(S.TRAINING, S.STOPPING, S.UPLOADING)
    assert (status["TrainingJobStatus"], status["SecondaryStatus"]) == ("Stopping", "Uploading")
    status = statuses.transition(status, S.MAX_RUNTIME_EXCEEDED, 200.0)
    assert (status["TrainingJobStatus"], status["SecondaryStatus"]) == ("Stopped", "MaxRuntimeExceeded")


def test_a_step_that_the_table_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot go from Completed to Training"):
        statuses.transition(walk(S.TRAINING, S.COMPLETED), S.TRAINING, 200.0)


def test_the_given_status_is_left_as_it_is() -> None:
    before = walk()
    statuses.transition(before, S.TRAINING, 200.0)
    assert before == walk()


def test_a_step_in_place_changes_the_message_only() -> None:
    status = statuses.transition(walk(S.TRAINING), S.TRAINING, 300.0, "epoch 3")
    assert len(status["SecondaryStatusTransitions"]) == 2
    assert status["SecondaryStatusTransitions"][-1]["StatusMessage"] == "epoch 3"
    assert status["LastModifiedTime"] == 300.0


def test_a_clock_that_was_set_back_gives_no_negative_times() -> None:
    status = statuses.transition(walk(S.TRAINING), S.COMPLETED, 50.0)
    assert status["TrainingEndTime"] >= status["TrainingStartTime"]
    assert status["TrainingTimeInSeconds"] == 1


def test_a_failure_reads_back() -> None:
    failure = Failure(cause=Cause.PROCESS, message="exited with code 3.", host="algo-2", rank=3, exit_code=3)
    status = statuses.fail(walk(S.TRAINING), failure, 200.0)
    assert status["FailureReason"].startswith("algo-2: exited with code 3.")
    assert statuses.failure_of(status) == failure
    assert statuses.failure_of(walk(S.TRAINING)) is None


def test_a_failure_of_a_newer_version_is_read_as_far_as_it_can_be() -> None:
    status = statuses.fail(walk(S.TRAINING), Failure(cause=Cause.PROCESS, message="x"), 200.0)
    status[statuses.OWN]["failure"] = {"cause": "of_tomorrow", "message": "y", "moon": 1}
    assert statuses.failure_of(status) == Failure(cause=Cause.INTERNAL, message="y")
    del status[statuses.OWN]
    failure = statuses.failure_of(status)
    assert failure is not None and failure.message == status["FailureReason"]


def test_warnings_are_kept_once() -> None:
    status = statuses.new_status({"TrainingJobName": "job"}, 1.0, warnings=("a",))
    status = statuses.with_warning(statuses.with_warning(status, "b"), "a")
    assert status[statuses.OWN]["warnings"] == ["a", "b"]
    assert statuses.noticed(status) == ["b"]
    assert statuses.noticed({statuses.OWN: {"warnings": ["of a record of an older version"]}}) != []


def test_members_equal_their_strings() -> None:
    assert TrainingJobStatus.COMPLETED == "Completed"
    assert f"{TrainingJobStatus.IN_PROGRESS}" == str(SecondaryStatus("Training").primary()) == "InProgress"


def test_a_job_that_goes_on_counts_neither_its_rest_nor_its_loss() -> None:
    status = statuses.new_status({"TrainingJobName": "a"}, 100.0)
    status = statuses.transition(status, SecondaryStatus.TRAINING, 110.0)
    failed = statuses.fail(status, Failure(cause=Cause.PROCESS, message="no"), 130.0)
    again = statuses.resumed(failed, 500.0, attempt=1)
    assert again["TrainingJobStatus"] == "InProgress" and again["SecondaryStatus"] == "Restarting"
    assert "FailureReason" not in again and "TrainingEndTime" not in again
    assert again[statuses.OWN]["failure"] is None and again[statuses.OWN]["attempt"] == 1
    over = statuses.transition(
        statuses.transition(again, SecondaryStatus.TRAINING, 501.0), SecondaryStatus.COMPLETED, 511.0
    )
    assert over["TrainingTimeInSeconds"] == over["BillableTimeInSeconds"] == 20 + 11
    lost = statuses.resumed(status, 900.0, attempt=1, last_sign=140.0)
    assert lost["SecondaryStatusTransitions"][-2]["EndTime"] == 140.0


def test_waits_for_hosts_are_not_billed_and_prices_make_it_less() -> None:
    status = statuses.new_status({"TrainingJobName": "a"}, 0.0)
    for secondary, now in (
        (SecondaryStatus.TRAINING, 0.0),
        (SecondaryStatus.INTERRUPTED, 100.0),
        (SecondaryStatus.RESTARTING, 400.0),
        (SecondaryStatus.TRAINING, 400.0),
        (SecondaryStatus.COMPLETED, 500.0),
    ):
        status = statuses.transition(status, secondary, now)
    assert (status["TrainingTimeInSeconds"], status["BillableTimeInSeconds"]) == (500, 200)
    assert [statuses.with_billable(status, s)["BillableTimeInSeconds"] for s in (49.5, 0, 900)] == [50, 1, 500]
