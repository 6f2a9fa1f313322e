"""List all jobs below ``$FLEETFIT_HOME``, with the facts that `fleetfit list` and the web page show about each job."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from container.contract import hyperparameters as codec
from container.contract.strategies import strategy_from_hyperparameters
from estimators.job.errors import JobNotFoundError, RecordError
from estimators.records.record import JobRecord, job_names, jobs_folder


class JobList:
    """A reader of the summaries of all jobs. The record of an ended job is read again only if the job's status has
    changed.

    Args:
        home: The folder to use instead of ``$FLEETFIT_HOME``.
    """

    def __init__(self, home: Path | None = None) -> None:
        self._home = home
        self._over: dict[str, tuple[int, dict[str, Any]]] = {}
        self._guard = threading.Lock()

    def summaries(self) -> tuple[list[dict[str, Any]], list[str]]:
        """Return the :func:`summary` of each job, newest first, and a line about each record that cannot be read."""
        with self._guard:  # concurrent requests would do the same work
            folder = str(jobs_folder(self._home))
            before, self._over = self._over, {}
            found: list[dict[str, Any]] = []
            unreadable: list[str] = []
            for name in job_names(self._home):
                mark = _changed(f"{folder}/{name}/status.json")
                known = before.get(name)
                if known is None or known[0] != mark:
                    try:
                        known = (mark, summary(JobRecord.open(name, self._home)))
                    except JobNotFoundError:
                        continue  # removed meanwhile
                    except RecordError as error:
                        unreadable.append(f"{name}: {error}")
                        continue
                # A running job may lose its supervisor without a change of its status, so it is not cached.
                if mark and known[1]["ended"] is not None:
                    self._over[name] = known
                found.append(known[1])
            return sorted(found, key=lambda job: job["created"] or 0.0, reverse=True), unreadable


def _changed(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


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
