"""Convert DescribeTrainingJob's responses to the status and request in a job's record, with pure functions."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from typing import Any

from container.contract.failures import Cause, Failure
from estimators.job import service_model

#: Members of the response that do not describe the job.
_NOT_THE_JOBS = ("ResponseMetadata",)

OVER = ("Completed", "Failed", "Stopped")

_EXIT_CODE = re.compile(r"exit code: (\d+)\s*$")

#: Beginning of SageMaker's failure reason -> the cause, and the remedy.
_CAUSES: tuple[tuple[str, Cause, str], ...] = (
    ("AlgorithmError", Cause.PROCESS, ""),
    ("ClientError", Cause.CONFIGURATION, ""),
    ("CapacityError", Cause.LAUNCH, "Try again later, in another region or with another instance type."),
    ("InternalServerError", Cause.HOST_LOST, "A fault of AWS: try again, or use max_retry_attempts=… for retries."),
    ("InternalFailure", Cause.HOST_LOST, "A fault of AWS: try again, or use max_retry_attempts=… for retries."),
    ("ResourceLimitExceeded", Cause.LAUNCH, "Request a higher quota (Service Quotas, Amazon SageMaker)."),
)


def is_over(answer: Mapping[str, Any]) -> bool:
    """Return whether DescribeTrainingJob's response says that the job has ended."""
    return answer.get("TrainingJobStatus") in OVER


def status_of(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a response of DescribeTrainingJob to a job's status.

    Times become seconds since the epoch. Members that only repeat the CreateTrainingJob request are removed.

    Args:
        answer: DescribeTrainingJob's response from boto3.
    """
    request = set(service_model.load_shapes()[service_model.ROOT_SHAPE]["members"]) - {"TrainingJobName"}
    return {name: plain(value) for name, value in answer.items() if name not in request and name not in _NOT_THE_JOBS}


def request_of(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the CreateTrainingJob request of the job that DescribeTrainingJob's response describes."""
    members = service_model.load_shapes()[service_model.ROOT_SHAPE]["members"]
    request = {name: given(name, plain(value)) for name, value in answer.items() if name in members}
    return {name: value for name, value in request.items() if value not in (None, [], {})}


def given(name: str, value: Any) -> Any:
    """Return the value of a member of SageMaker's response, without empty values.

    SageMaker's responses contain empty values that the request did not set.

    Args:
        name: The name of the member.
        value: The value of the member.
    """
    if not isinstance(value, Mapping) or name in ("HyperParameters", "StaticHyperParameters", "Environment"):
        return value
    return {key: item for key, item in value.items() if item not in (None, "", [], {})}


def plain(value: Any) -> Any:
    """Convert a value of boto3 to the types of JSON. Times become seconds since the epoch."""
    if isinstance(value, datetime.datetime):
        return value.timestamp()
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def failure_of(answer: Mapping[str, Any]) -> Failure | None:
    """Return SageMaker's reason for a job's failure. Return None if the job did not fail."""
    if answer.get("TrainingJobStatus") != "Failed":
        return None
    reason = str(answer.get("FailureReason") or "SageMaker gives no reason.").strip()
    cause, hint = Cause.INTERNAL, ""
    for start, found, remedy in _CAUSES:
        if reason.startswith(start):
            cause, hint = found, remedy
            break
    code = _EXIT_CODE.search(reason)
    return Failure(
        cause=cause,
        message=reason,
        exit_code=int(code.group(1)) if code is not None else None,
        hints=(hint,) if hint else (),
    )


#: A step of a job: its start in seconds since the epoch, and its text (``Starting: Preparing the instances``).
Step = tuple[float, str]


def news(known: Sequence[Step], steps: Sequence[Step]) -> list[Step]:
    """Return the steps that are new or whose message has changed.

    Args:
        known: The steps of the previous response.
        steps: The steps of the current response.
    """
    return [step for index, step in enumerate(steps) if index >= len(known) or known[index] != step]


def steps_of(answer: Mapping[str, Any]) -> list[Step]:
    """Return the steps that the job has begun, from DescribeTrainingJob's response."""
    steps: list[Step] = []
    for item in answer.get("SecondaryStatusTransitions") or ():
        message = str(item.get("StatusMessage") or "").strip()
        text = f"{item.get('Status')}: {message}" if message else str(item.get("Status"))
        steps.append((float(plain(item.get("StartTime")) or 0.0), text))
    return steps


def same_job(answer: Mapping[str, Any], request: Mapping[str, Any], since: float) -> bool:
    """Return whether our request created an existing job.

    If SageMaker's response to the request is lost, the repeated request fails because the job exists already.

    Args:
        answer: DescribeTrainingJob's response about the existing job.
        request: Our request.
        since: The time when the request was first sent, in seconds since the epoch.
    """
    created = plain(answer.get("CreationTime"))
    told = request_of(answer)
    compared = ("RoleArn", "HyperParameters", "Environment")
    return (
        isinstance(created, int | float)
        and created >= since - _CLOCKS
        and all((told.get(name) or None) == (request.get(name) or None) for name in compared)
    )


#: Maximum difference between AWS's clock and this machine's clock, in seconds: signed requests allow five minutes.
_CLOCKS = 300.0
