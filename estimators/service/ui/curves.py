"""Convert metrics to the curves that pages draw, with pure functions.

The curve of a metric has a line for each rank or host. A line has a list of times in seconds and a list of values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from container.contract.wire import Event
from estimators.job.metrics import system_metrics
from estimators.results.result import Result
from estimators.results.thinning import thin

#: Metric -> label of a line -> seconds since the job's creation, and values (None if not a finite number).
Curves = dict[str, dict[str, list[list[float | None]]]]


def of_result(result: Result, job: str = "") -> Curves:
    """Return the curves of the metrics that a script has reported.

    Args:
        result: The result of the job.
        job: The prefix of the lines' labels, which distinguishes several jobs.
    """
    found: Curves = {}
    for point in result.series:
        label = _label(point.rank, point.host, point.attempt)
        _add(found, point.name, f"{job} {label}" if job else label, point.elapsed_s, point.value)
    return found


def of_resources(events: Iterable[Event], created: float) -> Curves:
    """Return the curves of the resources that ranks and hosts have used.

    Args:
        events: The job's events of kind ``resources``.
        created: The time at which the job was created, in seconds since the epoch.
    """
    found: Curves = {}
    for event in thin(system_metrics(events))[0]:
        label = _label(event.rank, event.host, event.attempt)
        _add(found, event.data["name"], label, event.time_ns / 1e9 - created, float(event.data["value"]))
    return found


def _add(found: Curves, name: str, label: str, seconds: float, value: float) -> None:
    times, values = found.setdefault(name, {}).setdefault(label, [[], []])
    times.append(seconds)
    values.append(value if math.isfinite(value) else None)


def _label(rank: int | None, host: str, attempt: int) -> str:
    label = f"rank {rank}" if rank is not None else host
    return f"{label}, attempt {attempt + 1}" if attempt else label
