"""Requests are held to botocore's model, in SageMaker's words."""

from __future__ import annotations

from typing import Any

import pytest

from estimators.service.errors import ServiceError
from estimators.service.models import Model, unknown_operation

OPERATIONS = ("CreateTrainingJob", "DescribeTrainingJob", "ListTrainingJobs", "AddTags")
A_TIME = "a time in seconds since the epoch"


@pytest.fixture(scope="module")
def model() -> Model:
    return Model("sagemaker", OPERATIONS)


def refusal(model: Model, operation: str, value: Any) -> ServiceError:
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
    ("operation", "value", "message"),
    [
        ("DescribeTrainingJob", {"TrainingJobName": 3}, "the value at 'trainingJobName' must be a string."),
        ("DescribeTrainingJob", {"TrainingJobName": "\ud800"}, "the text at 'trainingJobName' is not valid Unicode."),
        ("DescribeTrainingJob", [], "the value at 'the request' must be a structure."),
        ("ListTrainingJobs", {"MaxResults": "3"}, "the value at 'maxResults' must be a whole number."),
        ("ListTrainingJobs", {"MaxResults": True}, "the value at 'maxResults' must be a whole number."),
        ("ListTrainingJobs", {"MaxResults": 1 << 40}, "the value at 'maxResults' is too large for integer."),
        ("ListTrainingJobs", {"CreationTimeAfter": "today"}, f"the value at 'creationTimeAfter' must be {A_TIME}."),
        ("ListTrainingJobs", {"CreationTimeAfter": -1}, f"the value at 'creationTimeAfter' must be {A_TIME}."),
        ("AddTags", {"ResourceArn": "arn", "Tags": {}}, "the value at 'tags' must be a list."),
        ("AddTags", {"ResourceArn": "arn", "Tags": ["a"]}, "the value at 'tags.1.member' must be a structure."),
        ("CreateTrainingJob", {"HyperParameters": []}, "the value at 'hyperParameters' must be a map."),
        (
            "CreateTrainingJob",
            {"EnableManagedSpotTraining": 1},
            "the value at 'enableManagedSpotTraining' must be true or false.",
        ),
    ],
)
def test_values_of_other_types_are_refused_in_words_of_json(
    model: Model, operation: str, value: Any, message: str
) -> None:
    error = refusal(model, operation, value)
    assert (error.code, error.message) == ("SerializationException", message)


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
    for known in (model, None):
        assert unknown_operation(known, "Nonsense").code == "UnknownOperationException"
