"""DescribeTrainingJob's answer as a job's record has it. Pure."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from typing import Any

from container.contract.failures import Cause, Failure
from estimators.job import service_model

#: Members of the answer that are not the job's.
_NOT_THE_JOBS = ("ResponseMetadata",)

OVER = ("Completed", "Failed", "Stopped")

_EXIT_CODE = re.compile(r"exit code: (\d+)\s*$")

#: How SageMaker's reasons begin -> the cause, and what to do.
_CAUSES: tuple[tuple[str, Cause, str], ...] = (
    ("AlgorithmError", Cause.PROCESS, ""),
    ("ClientError", Cause.CONFIGURATION, ""),
    ("CapacityError", Cause.LAUNCH, "Try again later, in another region or with another instance type."),
    ("InternalServerError", Cause.HOST_LOST, "A fault of AWS: try again, or use max_retry_attempts=… for retries."),
    ("InternalFailure", Cause.HOST_LOST, "A fault of AWS: try again, or use max_retry_attempts=… for retries."),
    ("ResourceLimitExceeded", Cause.LAUNCH, "Request a higher quota (Service Quotas, Amazon SageMaker)."),
)


def is_over(answer: Mapping[str, Any]) -> bool:
    """Whether the job is over."""
    return answer.get("TrainingJobStatus") in OVER


def status_of(answer: Mapping[str, Any]) -> dict[str, Any]:
    """The answer as a status: times as seconds since the epoch, without what repeats the request.

    Args:
        answer: DescribeTrainingJob's, as boto3 gives it.
    """
    request = set(service_model.load_shapes()[service_model.ROOT_SHAPE]["members"]) - {"TrainingJobName"}
    return {name: plain(value) for name, value in answer.items() if name not in request and name not in _NOT_THE_JOBS}


def request_of(answer: Mapping[str, Any]) -> dict[str, Any]:
    """The CreateTrainingJob request that an answer describes."""
    members = service_model.load_shapes()[service_model.ROOT_SHAPE]["members"]
    request = {name: given(name, plain(value)) for name, value in answer.items() if name in members}
    return {name: value for name, value in request.items() if value not in (None, [], {})}


def given(name: str, value: Any) -> Any:
    """A member without what was not given: answers have an empty key where there is none."""
    if not isinstance(value, Mapping) or name in ("HyperParameters", "StaticHyperParameters", "Environment"):
        return value
    return {key: item for key, item in value.items() if item not in (None, "", [], {})}


def plain(value: Any) -> Any:
    """A value of boto3's as JSON has it: times become seconds since the epoch."""
    if isinstance(value, datetime.datetime):
        return value.timestamp()
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def failure_of(answer: Mapping[str, Any]) -> Failure | None:
    """What SageMaker says of a job's failure; None where it did not fail."""
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


#: A step of a job: when it began, in seconds since the epoch, and ``Starting: Preparing the instances``.
Step = tuple[float, str]


def news(known: Sequence[Step], steps: Sequence[Step]) -> list[Step]:
    """The steps that were not known, or have another message now."""
    return [step for index, step in enumerate(steps) if index >= len(known) or known[index] != step]


def steps_of(answer: Mapping[str, Any]) -> list[Step]:
    """The steps that a job has taken so far."""
    steps: list[Step] = []
    for item in answer.get("SecondaryStatusTransitions") or ():
        message = str(item.get("StatusMessage") or "").strip()
        text = f"{item.get('Status')}: {message}" if message else str(item.get("Status"))
        steps.append((float(plain(item.get("StartTime")) or 0.0), text))
    return steps


def same_job(answer: Mapping[str, Any], request: Mapping[str, Any], since: float) -> bool:
    """Whether a job that is there is the one that a request, whose answer was lost, has made.

    Args:
        answer: DescribeTrainingJob's.
        request: The request.
        since: When it was sent for the first time, in seconds since the epoch.
    """
    created = plain(answer.get("CreationTime"))
    told = request_of(answer)
    compared = ("RoleArn", "HyperParameters", "Environment")
    return (
        isinstance(created, int | float)
        and created >= since - _CLOCKS
        and all((told.get(name) or None) == (request.get(name) or None) for name in compared)
    )


#: How far AWS's clock and this machine's may be apart, in seconds: signed requests allow five minutes.
_CLOCKS = 300.0
