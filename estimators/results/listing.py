"""List all jobs below ``$FLEETFIT_HOME``, with the facts that `fleetfit list` and the web page show about each job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from container.contract import hyperparameters as codec
from container.contract.strategies import strategy_from_hyperparameters
from estimators.job.errors import JobNotFoundError, RecordError
from estimators.records.record import JobRecord, job_names


def summaries() -> tuple[list[dict[str, Any]], list[str]]:
    """Return a summary of each job, newest first, and a line about each record that cannot be read."""
    found: list[dict[str, Any]] = []
    unreadable: list[str] = []
    for name in job_names():
        try:
            found.append(summary(JobRecord.open(name)))
        except JobNotFoundError:
            continue  # removed meanwhile
        except RecordError as error:
            unreadable.append(f"{name}: {error}")
    return sorted(found, key=lambda job: job["created"] or 0.0, reverse=True), unreadable


def summary(record: JobRecord) -> dict[str, Any]:
    """Return the summary of one job.

    Raises:
        JobNotFoundError: the record has been removed.
        RecordError: the record cannot be read.
    """
    status, request = record.read_status(), record.read_request()
    over = status.get("TrainingEndTime")
    if over is None and status["TrainingJobStatus"] in ("Completed", "Failed", "Stopped"):
        over = status.get("LastModifiedTime")
    return {
        "name": record.name,
        "status": status["TrainingJobStatus"],
        "secondary_status": status.get("SecondaryStatus"),
        "strategy": _strategy(request),
        "hosts": (request.get("ResourceConfig") or {}).get("InstanceCount") or 0,
        "instance_type": (request.get("ResourceConfig") or {}).get("InstanceType"),
        "created": status.get("CreationTime"),
        "ended": over,
        "failure_reason": status.get("FailureReason"),
        "record": str(record.path),
    }


def _strategy(request: Mapping[str, Any]) -> str:
    try:
        strategy = strategy_from_hyperparameters(codec.decode(request.get("HyperParameters") or {}))
    except (ValueError, TypeError):
        return "?"
    return strategy.name if strategy is not None else "none"
