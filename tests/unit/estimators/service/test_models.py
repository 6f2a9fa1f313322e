"""Requests are held to botocore's model, in SageMaker's words."""

from __future__ import annotations

from typing import Any

import pytest

from estimators.service.errors import ServiceError
from estimators.service.models import Model, unknown_operation

OPERATIONS = ("CreateTrainingJob", "DescribeTrainingJob", "ListTrainingJobs", "AddTags")


@pytest.fixture(scope="module")
def model() -> Model:
    return Model("sagemaker", OPERATIONS)


def refusal(model: Model, operation: str, value: dict[str, Any]) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        model.check(operation, value)
    return caught.value


@pytest.mark.parametrize(
    ("operation", "value", "message"),
    [
        ("DescribeTrainingJob", {}, "null at 'trainingJobName' failed to satisfy constraint: Member must not be null"),
        (
            "DescribeTrainingJob",
            {"TrainingJobName": "-a"},
            "Value '-a' at 'trainingJobName' failed to satisfy constraint: Member must satisfy regular expression "
            "pattern: [a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}",
        ),
        ("DescribeTrainingJob", {"TrainingJobName": "a" * 300}, "Member must have length less than or equal to 63"),
        ("ListTrainingJobs", {"MaxResults": 101}, "Member must have value less than or equal to 100"),
        ("ListTrainingJobs", {"MaxResults": 0}, "Member must have value greater than or equal to 1"),
        ("ListTrainingJobs", {"SortOrder": "Up"}, "Member must satisfy enum value set: [Ascending, Descending]"),
        ("ListTrainingJobs", {"Sortorder": "Up"}, "Unknown member 'Sortorder'"),
        ("AddTags", {"ResourceArn": "arn", "Tags": [{"Key": "a"}]}, "at 'tags.1.member.value' failed"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_as_sagemaker_says_it(
    model: Model, operation: str, value: dict[str, Any], message: str
) -> None:
    error = refusal(model, operation, value)
    assert error.code == "ValidationException"
    assert error.message.startswith(("1 validation error detected: ", "2 validation errors detected: "))
    assert message in error.message


@pytest.mark.parametrize(
    ("operation", "value"),
    [
        ("DescribeTrainingJob", {"TrainingJobName": 3}),
        ("DescribeTrainingJob", {"TrainingJobName": "\ud800"}),
        ("ListTrainingJobs", {"MaxResults": "3"}),
        ("ListTrainingJobs", {"MaxResults": True}),
        ("ListTrainingJobs", {"MaxResults": 1 << 40}),
        ("ListTrainingJobs", {"CreationTimeAfter": "today"}),
        ("ListTrainingJobs", {"CreationTimeAfter": -1}),
        ("AddTags", {"ResourceArn": "arn", "Tags": {}}),
    ],
)
def test_values_of_other_types_are_refused(model: Model, operation: str, value: dict[str, Any]) -> None:
    assert refusal(model, operation, value).code == "SerializationException"


def test_answers_hold_what_the_model_has_and_nothing_else(model: Model) -> None:
    status = {
        "TrainingJobName": "a",
        "CreationTime": 1.23456,
        "Fleetfit": {"attempt": 0},
        "FailureReason": None,
        "SecondaryStatusTransitions": [{"Status": "Starting", "StartTime": 5, "Mine": 1}],
        "Environment": {"A": "1"},
    }
    assert model.render("DescribeTrainingJob", status) == {
        "TrainingJobName": "a",
        "CreationTime": 1.235,
        "SecondaryStatusTransitions": [{"Status": "Starting", "StartTime": 5.0}],
        "Environment": {"A": "1"},
    }


def test_operations_that_are_not_here_are_named(model: Model) -> None:
    assert "does not have" in unknown_operation(model, "CreateModel").message
    assert unknown_operation(model, "Nonsense").code == "UnknownOperationException"
    assert unknown_operation(None, "Nonsense").code == "UnknownOperationException"
