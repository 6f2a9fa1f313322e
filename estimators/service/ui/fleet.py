"""Create the pages of studies and of hosts.

A study is a hyperparameter tuning job with its trials. The page of hosts shows the hosts in use with their price per
hour, the queues, and the hosts that are kept for the next job.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from container.contract.membership import natural_key
from estimators.backends.hosts import kept
from estimators.job import instances
from estimators.job.errors import FleetfitError
from estimators.job.queueing import placed
from estimators.records import status as statuses
from estimators.records.queues import JobQueue, machine, queue_names
from estimators.records.record import JobRecord, jobs_folder
from estimators.results.html import render
from estimators.results.summary import dollars_text
from estimators.service.ui.text import when
from estimators.tuning.config import TuningSpec
from estimators.tuning.display import cells, sorted_rows, summary
from estimators.tuning.record import TuningRecord, tuning_names


def studies_html(home: Path | None) -> str:
    """Return the page of all studies, ordered from the newest to the oldest."""
    rows, unreadable = [], []
    for name in tuning_names(home):
        try:
            record = TuningRecord.open(name, home)
            status = record.status()
            if status:
                rows.append((status["CreationTime"], name, status["HyperParameterTuningJobStatus"], summary(record)))
        except (FleetfitError, KeyError, ValueError) as error:
            unreadable.append(f"{name}: {error}")
    rows.sort(reverse=True)
    shown = [(name, status, text, when(created)) for created, name, status, text in rows]
    return render("service/ui/templates/studies", rows=shown, unreadable=unreadable)


def study_html(record: TuningRecord) -> str:
    """Return the page of one study. The page lists the trials, the best trial first."""
    status, rows = record.status(), sorted_rows(record)
    head, table = cells(record, rows)
    own = status.get("Fleetfit") or {}
    return render(
        "service/ui/templates/study",
        name=record.name,
        status=str(status["HyperParameterTuningJobStatus"]),
        why=status.get("FailureReason") or own.get("ended_because") or "",
        summary=summary(record),
        head=["job", *head[:-1]],
        rows=[(row["job"], cell[:-1], row["reason"] or "") for row, cell in zip(rows, table, strict=True)],
    )


def study_series(record: TuningRecord) -> dict[str, Any]:
    """Return the curves of a study: the value of each trial, and the best value up to that trial."""
    spec: TuningSpec = record.spec
    numbers: list[float] = []
    values: list[float] = []
    best: list[float] = []
    for row in sorted(record.trials(), key=lambda row: row["number"]):
        if row["value"] is not None:
            numbers.append(row["number"] + 1)
            values.append(row["value"])
            best.append((max if spec.maximize else min)(values))
    if not values:
        return {}
    return {spec.objective: {"trial": [numbers, values], "best so far": [numbers, best]}}


def hosts_html(running: Sequence[str], home: Path | None) -> str:
    """Return the page of hosts: those of running jobs, the queues, and the hosts that are kept for the next job.

    Args:
        running: The names of the running jobs.
        home: The folder to use instead of ``$FLEETFIT_HOME``.
    """
    rows: list[tuple[str, str, str, str, str, str]] = []
    total, priced = 0.0, False
    for name in running:
        try:
            record = JobRecord.open(name, home)
            status, request = record.read_status(), record.read_request()
        except FleetfitError:
            continue  # removed meanwhile
        resources = request.get("ResourceConfig") or {}
        kind = str(resources.get("InstanceType") or "–")
        known = instances.describe(kind)
        price = known.on_demand if known is not None else None
        for host, state, ranks in _hosts(record, status, int(resources.get("InstanceCount") or 0)):
            rows.append((name, host, kind, state, ranks, "–" if price is None else dollars_text(price)))
            if price is not None:
                total, priced = total + price, True
    return render(
        "service/ui/templates/hosts",
        rows=rows,
        total=f"{dollars_text(total)} an hour" if priced else "",
        queued=_queued(home),
        machine=str(machine()),
        kept=[str(one) for one in kept.find(jobs_folder(home).parent)],
    )


def _queued(home: Path | None) -> list[tuple[str, str, str, str, str]]:
    """Return the jobs in queues: first the running jobs, then the waiting jobs in the order of the queue."""
    rows = []
    for name in queue_names(home):
        for place, one in placed(JobQueue(name, home).entries()):
            rows.append((one.job, name, "runs" if place is None else str(place), str(one.priority), str(one.needs)))
    return rows


def _hosts(record: JobRecord, status: dict[str, Any], count: int) -> list[tuple[str, str, str]]:
    """Return the name, the state and the ranks of each host of a running job. The ranks are known only for an elastic
    job.
    """
    noted = status.get(statuses.OWN, {}).get("hosts")
    if isinstance(noted, list) and noted:
        return [
            (str(host["name"]), str(host["state"]), ", ".join(map(str, host.get("ranks") or ())) or "–")
            for host in sorted(noted, key=lambda host: natural_key(str(host["name"])))
            if host["state"] != "gone"
        ]
    planned = sorted({f"algo-{number}" for number in range(1, count + 1)} | set(record.hosts), key=natural_key)
    return [(name, "ready", "–") for name in planned]
