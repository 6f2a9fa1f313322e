"""What SageMaker tells, as a job's record has it, and how often it is asked."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from container.contract.failures import Cause
from estimators.backends.sagemaker import mirror
from estimators.backends.sagemaker.pace import Pace
from estimators.records import status as statuses

WHEN = datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone.utc)
ANSWER: dict[str, Any] = {
    "TrainingJobName": "job",
    "TrainingJobArn": "arn:job",
    "TrainingJobStatus": "InProgress",
    "SecondaryStatus": "LaunchingMLInstances",
    "SecondaryStatusTransitions": [{"Status": "Starting", "StartTime": WHEN, "StatusMessage": "Preparing"}],
    "CreationTime": WHEN,
    "RoleArn": "arn:role",
    "HyperParameters": {"a": ""},
    "Environment": {},
    "AlgorithmSpecification": {"TrainingImage": "mine", "TrainingInputMode": "File"},
    "OutputDataConfig": {"S3OutputPath": "s3://b", "KmsKeyId": ""},
    "WarmPoolStatus": {"Status": "Available"},
    "ResponseMetadata": {"HTTPStatusCode": 200},
}


def test_a_status_has_epochs_and_nothing_of_the_request() -> None:
    status = mirror.status_of(ANSWER)
    assert status["CreationTime"] == WHEN.timestamp()
    assert status["SecondaryStatusTransitions"][0]["StartTime"] == WHEN.timestamp()
    assert status["WarmPoolStatus"] == {"Status": "Available"}
    assert not {"ResponseMetadata", "HyperParameters", "OutputDataConfig"} & set(status)


def test_a_request_is_what_was_given() -> None:
    assert mirror.request_of(ANSWER) == {
        "TrainingJobName": "job",
        "RoleArn": "arn:role",
        "HyperParameters": {"a": ""},
        "AlgorithmSpecification": {"TrainingImage": "mine", "TrainingInputMode": "File"},
        "OutputDataConfig": {"S3OutputPath": "s3://b"},
    }


@pytest.mark.parametrize(
    ("reason", "cause", "exit_code"),
    [
        ("AlgorithmError: ValueError: no, exit code: 3", Cause.PROCESS, 3),
        ("ClientError: Data download failed", Cause.CONFIGURATION, None),
        ("CapacityError: Unable to provision requested ML compute capacity.", Cause.LAUNCH, None),
        ("InternalServerError: We encountered an internal error.", Cause.HOST_LOST, None),
        (None, Cause.INTERNAL, None),
    ],
)
def test_reasons_have_causes(reason: str | None, cause: Cause, exit_code: int | None) -> None:
    failure = mirror.failure_of({"TrainingJobStatus": "Failed", "FailureReason": reason})
    assert failure is not None and (failure.cause, failure.exit_code) == (cause, exit_code)
    assert mirror.failure_of({"TrainingJobStatus": "Stopped"}) is None


def test_news_are_the_steps_that_were_not_there() -> None:
    before = mirror.steps_of(ANSWER)
    assert before == [(WHEN.timestamp(), "Starting: Preparing")]
    assert mirror.news(before, [*before, (5.0, "Training")]) == [(5.0, "Training")]
    assert mirror.news(before, [(before[0][0], "Starting: Launching")]) == [(before[0][0], "Starting: Launching")]
    assert mirror.news([], before) == before and mirror.news(before, before) == []


def test_a_job_whose_answer_was_lost_is_told_from_another_of_its_name() -> None:
    request = {"TrainingJobName": "job", "RoleArn": "arn:role", "HyperParameters": {"a": ""}}
    now = WHEN.timestamp()
    assert mirror.same_job(ANSWER, request, now)
    assert not mirror.same_job(ANSWER, request, now + 3600)  # an older one
    assert not mirror.same_job(ANSWER, {**request, "HyperParameters": {"a": "1"}}, now)


def test_final_metrics_of_both_sides_are_kept() -> None:
    ours = {"MetricName": "ours", "Value": 1.0, "Timestamp": 1.0}
    both = {"MetricName": "both", "Value": 1.0, "Timestamp": 1.0}
    theirs = {"MetricName": "both", "Value": 2.0, "Timestamp": 2.0}
    status = {**statuses.new_status({"TrainingJobName": "job"}, 0.0), "FinalMetricDataList": [ours, both]}
    after = statuses.mirrored(status, {"TrainingJobStatus": "Completed", "FinalMetricDataList": [theirs]}, 9.0)
    assert after["FinalMetricDataList"] == [ours, theirs]
    assert statuses.last_seen(after) == 9.0


class TestPace:
    def test_a_silent_job_is_asked_less(self) -> None:
        pace = Pace(poll_s=2.0)
        assert pace.next_look(0.0) == 2.0
        assert pace.next_look(60.0) == 4.0
        assert pace.next_look(1e6) == 10.0
        assert pace.describe_after(1e6) == 15.0

    def test_many_hosts_stay_below_cloudwatchs_quota(self) -> None:
        assert Pace(poll_s=2.0, hosts=100).next_look(0.0) == 20.0

    def test_failures_back_off_to_a_minute(self) -> None:
        pace = Pace(poll_s=2.0)
        waits = [pace.next_look(0.0, failures) for failures in range(1, 9)]
        assert waits == [4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0, 60.0]
