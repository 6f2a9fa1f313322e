"""``status.json``: SageMaker's DescribeTrainingJob answer, and the pure functions that bring it forward.

Times are seconds since the epoch (floats), as on SageMaker's wire. What SageMaker has no name for is under the key
``Fleetfit``: ``failure`` (:meth:`Failure.to_dict` or None), ``warnings`` (a list of strings), ``warned_before`` (how
many of them, the first ones, were said before the start), ``importer`` (why ranks import their modules themselves,
where they do), ``attempt``, ``attempts`` (how those ended that did not complete), ``supervisor_pid``, and
``record_version``.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping
from typing import Any

from container.contract.failures import Cause, Failure
from estimators.records.states import MESSAGES, SecondaryStatus, TrainingJobStatus

#: The key of what SageMaker has no name for.
OWN = "Fleetfit"

#: Raised when an older fleetfit could no longer read a record; it then says so instead of misreading it.
RECORD_VERSION = 1

#: SageMaker shows at most this many characters of a status message.
_MESSAGE_LIMIT = 1024

#: While a job is in one of these, no instance works for it.
_NOT_BILLED = (SecondaryStatus.INTERRUPTED.value, SecondaryStatus.PENDING.value)


def new_status(request: Mapping[str, Any], now: float, *, warnings: Iterable[str] = ()) -> dict[str, Any]:
    """Return the status of a job that has just been created.

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
            "warnings": (before := list(warnings)),
            "warned_before": len(before),
            "attempt": 0,
            "supervisor_pid": None,
        },
    }


def transition(status: Mapping[str, Any], secondary: SecondaryStatus, now: float, message: str = "") -> dict[str, Any]:
    """Return the status after a step to ``secondary``; the given one is left as it is.

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


def resumed(status: Mapping[str, Any], now: float, *, attempt: int, last_sign: float | None = None) -> dict[str, Any]:
    """Return the status for another attempt of a job that was over, or whose supervisor was lost.

    The time between counts neither as training nor as billable.

    Args:
        status: The last status on record.
        now: Seconds since the epoch.
        attempt: The number of the attempt that begins.
        last_sign: When a supervisor that was lost gave its last sign of life; default: the status's last change.
    """
    after = copy.deepcopy(dict(status))
    entries = after["SecondaryStatusTransitions"]
    ended = last_sign if last_sign is not None else after.get("LastModifiedTime", now)
    entries[-1].setdefault("EndTime", max(entries[-1]["StartTime"], ended))
    now = max(now, entries[-1]["EndTime"])
    entries.append(_entry(SecondaryStatus.RESTARTING, now, "Resumed from the last checkpoint"))
    for name in ("FailureReason", "TrainingEndTime", "TrainingTimeInSeconds", "BillableTimeInSeconds"):
        after.pop(name, None)
    after["LastModifiedTime"] = now
    after["SecondaryStatus"] = SecondaryStatus.RESTARTING.value
    after["TrainingJobStatus"] = TrainingJobStatus.IN_PROGRESS.value
    return with_own(after, failure=None, attempt=attempt)


def with_billable(status: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """Return the status of an ended job with other billable seconds (spot prices), from 1 to all of them."""
    training = status.get("TrainingTimeInSeconds")
    if training is None:
        return dict(status)
    return {**status, "BillableTimeInSeconds": min(training, max(1, math.ceil(seconds)))}


def fail(status: Mapping[str, Any], failure: Failure, now: float) -> dict[str, Any]:
    """Return the status of a job that failed, with ``FailureReason`` and the failure as data.

    Raises:
        ValueError: the job is over already.
    """
    after = transition(status, SecondaryStatus.FAILED, now, failure.summary())
    after["FailureReason"] = failure.reason()
    after.setdefault(OWN, {})["failure"] = failure.to_dict()
    return after


def with_own(status: Mapping[str, Any], **values: Any) -> dict[str, Any]:
    """Return the status with some of fleetfit's own values replaced: ``with_own(status, attempt=1)``."""
    return {**status, OWN: {**status.get(OWN, {}), **values}}


def with_warning(status: Mapping[str, Any], warning: str) -> dict[str, Any]:
    """Add a warning to the status, unless it is there already."""
    warnings = list(status.get(OWN, {}).get("warnings") or [])
    return with_own(status, warnings=warnings if warning in warnings else [*warnings, warning])


def with_unshared(status: Mapping[str, Any], reason: str) -> dict[str, Any]:
    """Add why ranks import their modules themselves to the status, unless it is there already."""
    reasons = list(status.get(OWN, {}).get("importer") or [])
    return with_own(status, importer=reasons if reason in reasons else [*reasons, reason])


def noticed(status: Mapping[str, Any]) -> list[str]:
    """Return the warnings since the job's start."""
    own = status.get(OWN, {})
    return [str(text) for text in own.get("warnings") or []][int(own.get("warned_before") or 0) :]


def lives_elsewhere(status: Mapping[str, Any] | None) -> bool:
    """Return whether the job is, or may be, on a service that keeps it running without its supervisor."""
    return bool((status or {}).get(OWN, {}).get("elsewhere"))


def last_seen(status: Mapping[str, Any] | None) -> float | None:
    """Return when a job that lives elsewhere was last seen there, in seconds since the epoch; None: not yet."""
    seen = (status or {}).get(OWN, {}).get("seen")
    return float(seen) if isinstance(seen, int | float) else None


def mirrored(
    status: Mapping[str, Any], there: Mapping[str, Any], now: float, failure: Failure | None = None
) -> dict[str, Any]:
    """Return the status of a job that lives elsewhere, as the service reports it, with fleetfit's own values.

    Args:
        status: The status so far.
        there: DescribeTrainingJob's answer, times as seconds since the epoch.
        now: When it was told, in seconds since the epoch.
        failure: What is known of the cause of a failure.
    """
    own = {**status.get(OWN, {}), "seen": now}
    if failure is not None:
        own["failure"] = failure.to_dict()
    after = {**there, OWN: own}
    # SageMaker lists what its own regular expressions found; what the script reported comes by the logs.
    final = {str(item["MetricName"]): item for item in status.get("FinalMetricDataList") or ()}
    final.update({str(item["MetricName"]): item for item in there.get("FinalMetricDataList") or ()})
    if final:
        after["FinalMetricDataList"] = list(final.values())
    return after


def unfollowed(status: Mapping[str, Any]) -> dict[str, Any]:
    """Return the status of a job that lives elsewhere while nobody follows it: as it was last seen."""
    return with_warning(
        status,
        "no process follows this job at the moment, so this is the job's last known status. Attach to the job to "
        "follow it again.",
    )


def lost(status: Mapping[str, Any], when: float, log_tail: str = "") -> dict[str, Any]:
    """Return the status of a job whose supervisor went away without ending it.

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
            "The supervisor was killed, or the machine was restarted or ran out of memory. The processes of the job "
            "ended too.",
            f"`fleetfit resume {status.get('TrainingJobName', 'JOB')}` starts the job again: the script continues from "
            "its last checkpoint, if there is one.",
        ),
    )
    return fail(status, failure, max(when, float(status.get("LastModifiedTime", when))))


def failure_of(status: Mapping[str, Any]) -> Failure | None:
    """Return why the job failed; None when it did not.

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
    """Return whether the job is over; False for a status that this version does not know."""
    try:
        return TrainingJobStatus(status["TrainingJobStatus"]).is_terminal
    except (KeyError, ValueError):
        return False


def _entry(secondary: SecondaryStatus, now: float, message: str) -> dict[str, Any]:
    text = message or MESSAGES[secondary]
    return {"Status": secondary.value, "StartTime": now, "StatusMessage": text[:_MESSAGE_LIMIT]}


def _durations(status: Mapping[str, Any]) -> dict[str, int]:
    """Return whole seconds, at least 1 once training began: clients divide by them."""
    start = status.get("TrainingStartTime")
    if start is None:
        return {}
    end = status["TrainingEndTime"]
    times = [
        (entry["Status"], max(0.0, entry.get("EndTime", end) - max(entry["StartTime"], start)))
        for entry in status["SecondaryStatusTransitions"]
    ]
    spent = sum(seconds for _, seconds in times)
    idle = sum(seconds for name, seconds in times if name in _NOT_BILLED)
    total = max(1, math.ceil(spent))
    return {"TrainingTimeInSeconds": total, "BillableTimeInSeconds": min(total, max(1, math.ceil(spent - idle)))}
