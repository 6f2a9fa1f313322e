"""Define the content of a job's ``status.json``, and functions that return the changed content after an event.

The content has the members of the response of SageMaker's DescribeTrainingJob. Times are seconds since the epoch
(floats), as in SageMaker's responses. The functions do not change their arguments. Values that SageMaker does not have
are under the key ``Fleetfit``:

* ``failure``: the job's failure as returned by :meth:`Failure.to_dict`, or None.
* ``warnings``: a list of strings.
* ``warned_before``: the number of warnings from before the job's start. These warnings are the first in the list.
* ``importer``: the reasons why each rank imports its modules separately, instead of sharing the imports of one process.
  The key is missing if there are no reasons.
* ``attempt``: the number of the current attempt, counted from 0.
* ``attempts``: a description of how each earlier attempt ended.
* ``supervisor_pid``: the PID of the job's supervisor.
* ``record_version``: the version of the record's format.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping
from typing import Any

from container.contract.failures import Cause, Failure
from estimators.records.states import MESSAGES, SecondaryStatus, TrainingJobStatus

#: The key of the values that SageMaker's response does not have.
OWN = "Fleetfit"

#: The version of the record's format. It is increased whenever the format changes so that older versions of fleetfit
#: cannot read it. Older versions then raise an error instead of misreading the record.
RECORD_VERSION = 1

#: The maximum length of a status message on SageMaker, in characters.
_MESSAGE_LIMIT = 1024

#: Statuses during which no instance works for the job.
_NOT_BILLED = (SecondaryStatus.INTERRUPTED.value, SecondaryStatus.PENDING.value)


def new_status(request: Mapping[str, Any], now: float, *, warnings: Iterable[str] = ()) -> dict[str, Any]:
    """Return the status of a job that has just been created.

    Args:
        request: The CreateTrainingJob request. Only the job's name is read.
        now: The current time, in seconds since the epoch.
        warnings: The warnings that were shown to the user before the job's start.
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
    """Return the content of the status file after the job has changed to a new secondary status.

    If ``secondary`` is the current status, only the message is changed. ``TrainingStartTime`` is set when the job
    begins to download or to train. When the job is over, ``TrainingEndTime`` and the durations are set. Durations are
    whole seconds, rounded up.

    Args:
        status: The status that :func:`new_status` or this function has returned.
        secondary: The new secondary status.
        now: The current time, in seconds since the epoch.
        message: The message for the user. An empty text for the default message of the new status.

    Raises:
        ValueError: the new status cannot follow the current status.
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
    """Return the status for another attempt of a job that has ended or whose supervisor was lost.

    The time between the attempts is neither training time nor billable time.

    Args:
        status: The last status on record.
        now: The current time, in seconds since the epoch.
        attempt: The number of the attempt that begins.
        last_sign: The time at which the supervisor of the last attempt last wrote to the record, in seconds since the
            epoch. None to use the time of the last change of the status.
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
    """Return the status of an ended job with ``seconds`` as its billable time.

    The billable time is rounded up to whole seconds, is at least 1, and is at most the training time. A status without
    a training time is returned unchanged.
    """
    training = status.get("TrainingTimeInSeconds")
    if training is None:
        return dict(status)
    return {**status, "BillableTimeInSeconds": min(training, max(1, math.ceil(seconds)))}


def fail(status: Mapping[str, Any], failure: Failure, now: float) -> dict[str, Any]:
    """Return the status of a failed job. The status contains ``FailureReason`` and the failure as data.

    Raises:
        ValueError: the job has already ended.
    """
    after = transition(status, SecondaryStatus.FAILED, now, failure.summary())
    after["FailureReason"] = failure.reason()
    after.setdefault(OWN, {})["failure"] = failure.to_dict()
    return after


def with_own(status: Mapping[str, Any], **values: Any) -> dict[str, Any]:
    """Return the status with some of fleetfit's values replaced, as in ``with_own(status, attempt=1)``."""
    return {**status, OWN: {**status.get(OWN, {}), **values}}


def with_warning(status: Mapping[str, Any], warning: str) -> dict[str, Any]:
    """Return the status with a warning added. If the status already has the warning, return the status unchanged."""
    warnings = list(status.get(OWN, {}).get("warnings") or [])
    return with_own(status, warnings=warnings if warning in warnings else [*warnings, warning])


def with_unshared(status: Mapping[str, Any], reason: str) -> dict[str, Any]:
    """Return the status with an additional reason why each rank imports its modules separately.

    Each reason is added only once.
    """
    reasons = list(status.get(OWN, {}).get("importer") or [])
    return with_own(status, importer=reasons if reason in reasons else [*reasons, reason])


def noticed(status: Mapping[str, Any]) -> list[str]:
    """Return only the warnings that were added after the job's start."""
    own = status.get(OWN, {})
    return [str(text) for text in own.get("warnings") or []][int(own.get("warned_before") or 0) :]


def lives_elsewhere(status: Mapping[str, Any] | None) -> bool:
    """Return whether the job runs, or may run, on SageMaker or on a dispatcher.

    Such a job continues if its local supervisor, which only follows it, is killed.
    """
    return bool((status or {}).get(OWN, {}).get("elsewhere"))


def last_seen(status: Mapping[str, Any] | None) -> float | None:
    """Return the time at which SageMaker or the dispatcher last reported the job's status, in seconds since the epoch.

    Return None if no status has been reported yet.
    """
    seen = (status or {}).get(OWN, {}).get("seen")
    return float(seen) if isinstance(seen, int | float) else None


def mirrored(
    status: Mapping[str, Any], there: Mapping[str, Any], now: float, failure: Failure | None = None
) -> dict[str, Any]:
    """Return the status that SageMaker or a dispatcher reports for a job, with fleetfit's own values added.

    Args:
        status: The status so far.
        there: The response of DescribeTrainingJob, with times as seconds since the epoch.
        now: The time at which the response was received, in seconds since the epoch.
        failure: The job's failure, or None if the job has not failed or the failure is unknown.
    """
    own = {**status.get(OWN, {}), "seen": now}
    if failure is not None:
        own["failure"] = failure.to_dict()
    after = {**there, OWN: own}
    # SageMaker lists only the metrics that its regular expressions found. Metrics that the script reported are read
    # from the logs, and are already in the status.
    final = {str(item["MetricName"]): item for item in status.get("FinalMetricDataList") or ()}
    final.update({str(item["MetricName"]): item for item in there.get("FinalMetricDataList") or ()})
    if final:
        after["FinalMetricDataList"] = list(final.values())
    return after


def unfollowed(status: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job's last known status, with a warning that no local process follows the job.

    The job may still run on SageMaker or on a dispatcher.
    """
    return with_warning(
        status,
        "no process follows this job at the moment, so this is the job's last known status. Attach to the job to "
        "follow it again.",
    )


def lost(status: Mapping[str, Any], when: float, log_tail: str = "") -> dict[str, Any]:
    """Return the status ``Failed`` for a job whose supervisor was killed before the job ended.

    Args:
        status: The last status on record. The status must not be terminal.
        when: The time at which the supervisor last wrote to the record, in seconds since the epoch.
        log_tail: The end of the supervisor's log.
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
    """Return the failure of a job. Return None if the job has not failed.

    If a newer version of fleetfit wrote the failure, values that this version does not know are ignored.
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
    """Return whether the job has ended. Return False for a status that this version of fleetfit does not know."""
    try:
        return TrainingJobStatus(status["TrainingJobStatus"]).is_terminal
    except (KeyError, ValueError):
        return False


def _entry(secondary: SecondaryStatus, now: float, message: str) -> dict[str, Any]:
    text = message or MESSAGES[secondary]
    return {"Status": secondary.value, "StartTime": now, "StatusMessage": text[:_MESSAGE_LIMIT]}


def _durations(status: Mapping[str, Any]) -> dict[str, int]:
    """Return the training time and the billable time in whole seconds. Return an empty dict if no training has begun.

    Each time is at least 1, because clients divide by these times.
    """
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
