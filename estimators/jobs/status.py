"""``status.json``: SageMaker's DescribeTrainingJob answer, and the pure functions that bring it forward.

Times are seconds since the epoch (floats), as on SageMaker's wire. What SageMaker has no name for is under the key
``Fleetfit``: ``failure`` (:meth:`Failure.to_dict` or None), ``warnings`` (a list of strings), ``attempt``,
``supervisor_pid``, and ``record_version``.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping
from typing import Any

from container.contract.failures import Cause, Failure
from estimators.jobs.states import MESSAGES, SecondaryStatus, TrainingJobStatus

#: The key of what SageMaker has no name for.
OWN = "Fleetfit"

#: Raised when an older fleetfit could no longer read a record; it then says so instead of misreading it.
RECORD_VERSION = 1

#: SageMaker shows at most this many characters of a status message.
_MESSAGE_LIMIT = 1024

#: While a job is in one of these, no instance works for it.
_NOT_BILLED = (SecondaryStatus.INTERRUPTED.value, SecondaryStatus.PENDING.value)


def new_status(request: Mapping[str, Any], now: float, *, warnings: Iterable[str] = ()) -> dict[str, Any]:
    """The status of a job that has just been created.

    Args:
        request: The CreateTrainingJob request; only the name is read.
        now: Seconds since the epoch.
        warnings: What the user was told before the start.
    """
    name = str(request["TrainingJobName"])
    return {
        "TrainingJobName": name,
        "TrainingJobArn": f"arn:aws:sagemaker:local:000000000000:training-job/{name.lower()}",
        "TrainingJobStatus": TrainingJobStatus.IN_PROGRESS.value,
        "SecondaryStatus": SecondaryStatus.STARTING.value,
        "SecondaryStatusTransitions": [_entry(SecondaryStatus.STARTING, now, "")],
        "CreationTime": now,
        "LastModifiedTime": now,
        OWN: {
            "record_version": RECORD_VERSION,
            "failure": None,
            "warnings": list(warnings),
            "attempt": 0,
            "supervisor_pid": None,
        },
    }


def transition(status: Mapping[str, Any], secondary: SecondaryStatus, now: float, message: str = "") -> dict[str, Any]:
    """The status after a step to ``secondary``; the given one is left as it is.

    A step to where the job is already changes the message only. ``TrainingStartTime`` is set when the job begins to
    download or to train, ``TrainingEndTime`` and the times in seconds (whole, rounded up) when it is over.

    Args:
        status: What :func:`new_status` or this function returned.
        secondary: Where the job is now.
        now: Seconds since the epoch.
        message: What to tell the user; default: a text for that status.

    Raises:
        ValueError: the table of transitions has no such step.
    """
    current = SecondaryStatus(status["SecondaryStatus"])
    after = copy.deepcopy(dict(status))
    entries = after["SecondaryStatusTransitions"]
    after["LastModifiedTime"] = now
    if secondary is current:
        if message:
            entries[-1]["StatusMessage"] = message[:_MESSAGE_LIMIT]
        return after
    if not current.can_become(secondary):
        raise ValueError(f"a training job cannot go from {current} to {secondary}.")
    now = max(now, entries[-1]["StartTime"])  # the clock may have been set back
    entries[-1]["EndTime"] = now
    entries.append(_entry(secondary, now, message))
    after["SecondaryStatus"] = secondary.value
    after["TrainingJobStatus"] = secondary.primary(TrainingJobStatus(status["TrainingJobStatus"])).value
    if secondary in (SecondaryStatus.DOWNLOADING, SecondaryStatus.TRAINING):
        after.setdefault("TrainingStartTime", now)
    if secondary.is_terminal:
        entries[-1]["EndTime"] = now
        after["TrainingEndTime"] = now
        after.update(_durations(after))
    return after


def fail(status: Mapping[str, Any], failure: Failure, now: float) -> dict[str, Any]:
    """The status of a job that failed, with ``FailureReason`` and the failure as data.

    Raises:
        ValueError: the job is over already.
    """
    after = transition(status, SecondaryStatus.FAILED, now, failure.summary())
    after["FailureReason"] = failure.reason()
    after.setdefault(OWN, {})["failure"] = failure.to_dict()
    return after


def with_own(status: Mapping[str, Any], **values: Any) -> dict[str, Any]:
    """The status with some of fleetfit's own values replaced: ``with_own(status, attempt=1)``."""
    return {**status, OWN: {**status.get(OWN, {}), **values}}


def with_warning(status: Mapping[str, Any], warning: str) -> dict[str, Any]:
    """The status with one more warning, unless it is there already."""
    warnings = list(status.get(OWN, {}).get("warnings") or [])
    return with_own(status, warnings=warnings if warning in warnings else [*warnings, warning])


def lost(status: Mapping[str, Any], when: float, log_tail: str = "") -> dict[str, Any]:
    """How a job reads whose supervisor went away without ending it.

    Args:
        status: The last status on record, not a terminal one.
        when: When the supervisor gave its last sign of life, in seconds since the epoch.
        log_tail: The end of the supervisor's own log.
    """
    failure = Failure(
        cause=Cause.INTERNAL,
        message="supervisor lost: the process that ran this job ended without finishing it.",
        log_tail=log_tail.strip() or None,
        hints=(
            "It was killed, or the machine was restarted or ran out of memory; the processes of the job ended with it.",
            "Start the job again under a new name; checkpoints that it wrote are in its record.",
        ),
    )
    return fail(status, failure, max(when, float(status.get("LastModifiedTime", when))))


def failure_of(status: Mapping[str, Any]) -> Failure | None:
    """Why the job failed; None when it did not.

    What a newer version wrote and this one does not know is read as far as it can be.
    """
    if status.get("TrainingJobStatus") != TrainingJobStatus.FAILED.value:
        return None
    values = status.get(OWN, {}).get("failure")
    reason = str(status.get("FailureReason") or "the record does not say why.")
    if not values:
        return Failure(cause=Cause.INTERNAL, message=reason)
    known = {cause.value for cause in Cause}
    if values.get("cause") not in known:
        values = {**values, "cause": Cause.INTERNAL.value}
    return Failure.from_dict({"message": reason, **values})


def is_terminal(status: Mapping[str, Any]) -> bool:
    """Whether the job is over; False for a status that this version does not know."""
    try:
        return TrainingJobStatus(status["TrainingJobStatus"]).is_terminal
    except (KeyError, ValueError):
        return False


def _entry(secondary: SecondaryStatus, now: float, message: str) -> dict[str, Any]:
    text = message or MESSAGES[secondary]
    return {"Status": secondary.value, "StartTime": now, "StatusMessage": text[:_MESSAGE_LIMIT]}


def _durations(status: Mapping[str, Any]) -> dict[str, int]:
    """Whole seconds, at least 1 once training began: clients divide by them."""
    start = status.get("TrainingStartTime")
    if start is None:
        return {}
    end = status["TrainingEndTime"]
    idle = sum(
        entry.get("EndTime", end) - max(entry["StartTime"], start)
        for entry in status["SecondaryStatusTransitions"]
        if entry["Status"] in _NOT_BILLED and entry.get("EndTime", end) > start
    )
    total = max(1, math.ceil(end - start))
    return {"TrainingTimeInSeconds": total, "BillableTimeInSeconds": min(total, max(1, math.ceil(end - start - idle)))}
