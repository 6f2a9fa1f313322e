"""Create the page with the list of jobs. Of the jobs' events, only the last events of running jobs are read."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from container.contract.wire import Event
from estimators.job import instances
from estimators.job.errors import JobNotFoundError, RecordError
from estimators.job.metrics import FinalMetrics
from estimators.records import status as statuses
from estimators.records.record import JobRecord
from estimators.results.html import render
from estimators.results.listing import JobList
from estimators.results.summary import dollars_text, number_text, seconds_text
from estimators.service.ui.text import when

#: The number of rows of the list on each page.
ROWS = 100
STATUSES = ("InProgress", "Completed", "Failed", "Stopping", "Stopped")

#: The orders of the list: a member of the summaries, and whether the order is descending. Jobs with equal values are
#: sorted from the newest to the oldest.
ORDERS = {"newest": ("created", True), "name": ("name", False), "status": ("status", False), "hosts": ("hosts", True)}

#: The maximum number of metrics that are shown for a job.
_METRICS = 3
#: The number of bytes at the end of a running job's events that are searched for the newest metrics.
_TAIL = 65536


def html(jobs: JobList, home: Path | None, query: Mapping[str, str]) -> str:
    """Return the page with the list of jobs.

    Args:
        jobs: The summaries of the jobs.
        home: The folder to use instead of ``$FLEETFIT_HOME``.
        query: The parameters of the page: ``q`` (a part of the name), ``status``, ``sort`` and ``page``.
    """
    text, status = query.get("q", "").strip(), query.get("status", "")
    order = query.get("sort", "newest")
    order = order if order in ORDERS else "newest"
    known, unreadable = jobs.summaries()
    found = [
        job
        for job in known
        if text.lower() in job["name"].lower() and (status not in STATUSES or job["status"] == status)
    ]
    member, downwards = ORDERS[order]
    found.sort(key=lambda job: job[member] or 0.0, reverse=downwards)
    pages = max(1, -(-len(found) // ROWS))
    number = query.get("page", "1")
    current = min(int(number), pages) if number.isascii() and number.isdecimal() and len(number) < 8 else 1
    current = max(1, current)
    now = time.time()

    def place(target: int) -> str:
        return "/?" + urlencode({"q": text, "status": status, "sort": order, "page": target})

    return render(
        "service/ui/templates/jobs",
        rows=[_row(job, now, home) for job in found[(current - 1) * ROWS : current * ROWS]],
        text=text,
        status=status,
        statuses=STATUSES,
        order=order,
        orders=tuple(ORDERS),
        count=len(found),
        known=len(known),
        current=current,
        pages=pages,
        before=place(current - 1) if current > 1 else "",
        after=place(current + 1) if current < pages else "",
        unreadable=unreadable,
    )


def _row(job: dict[str, Any], now: float, home: Path | None) -> dict[str, str]:
    created = job["created"]
    took = None if created is None else max(0.0, (job["ended"] or now) - created)
    metrics, paid = _newest(job["name"], home)
    known = instances.describe(str(job["instance_type"] or ""))
    cost = paid
    if cost is None and took is not None and known is not None and known.on_demand is not None:
        cost = job["hosts"] * took / 3600.0 * known.on_demand
    return {
        "name": job["name"],
        "status": job["status"],
        "secondary": "" if job["secondary_status"] in (None, job["status"]) else job["secondary_status"],
        "strategy": job["strategy"].replace("_", " "),
        "hosts": str(job["hosts"]),
        "where": str(job["instance_type"] or "–"),
        "created": when(created),
        "took": "–" if took is None else seconds_text(took),
        "metrics": ", ".join(f"{name} {number_text(value)}" for name, value in metrics[:_METRICS]) or "–",
        "cost": "–" if cost is None else dollars_text(cost),
    }


def _newest(name: str, home: Path | None) -> tuple[list[tuple[str, float]], float | None]:
    """Return a job's newest metrics, and the cost of the job's hosts.

    The cost is None if the job's record contains no cost, because fleetfit has not rented the hosts for the job.
    """
    try:
        record = JobRecord.open(name, home)
        status = record.stored_status() or {}
        final = status.get("FinalMetricDataList")
        if final is None:
            final = _of_events(record.events_file)
        paid = (status.get(statuses.OWN, {}).get("cost") or {}).get("total")
        return [(str(one["MetricName"]), float(one["Value"])) for one in final], paid
    except (JobNotFoundError, RecordError, OSError, KeyError, TypeError, ValueError):
        return [], None  # removed meanwhile, or not readable, which the list reports


def _of_events(path: Path) -> list[dict[str, Any]]:
    final = FinalMetrics()
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
            lines = file.read(_TAIL).split(b"\n")
    except FileNotFoundError:
        return []
    for line in lines:
        if b'"metric"' in line:
            try:
                final.add(Event.from_dict(json.loads(line)))
            except (ValueError, TypeError):
                continue  # the first line is incomplete, and the last one may be
    return final.to_list()
