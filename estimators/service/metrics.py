"""Implement CloudWatch's GetMetricStatistics. The values come from the metric events in the jobs' records."""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Mapping
from typing import Any

from estimators.service.errors import ServiceError
from estimators.service.records import Jobs

NAMESPACE = "/aws/sagemaker/TrainingJobs"
_DIMENSION = "TrainingJobName"
#: CloudWatch's limit of data points in one response.
_MOST = 1440


def statistics(jobs: Jobs, request: Mapping[str, Any]) -> dict[str, Any]:
    """Answer a GetMetricStatistics request.

    The response contains statistics for each period, computed from the values of all ranks.

    Args:
        jobs: The jobs on record.
        request: The request.
    """
    period = int(request["Period"])
    start = math.floor(request["StartTime"] / period) * period
    end = math.ceil(request["EndTime"] / period) * period
    if request["EndTime"] <= request["StartTime"]:
        raise ServiceError("InvalidParameterValue", "The parameter StartTime must be less than the parameter EndTime.")
    if request.get("ExtendedStatistics"):
        raise ServiceError("InvalidParameterValue", "ExtendedStatistics are not available on a fleetfit endpoint.")
    if (end - start) / period > _MOST:
        raise ServiceError(
            "InvalidParameterCombination",
            f"You have requested up to {(end - start) // period:,} datapoints, which exceeds the limit of "
            f"{_MOST:,}. You may reduce the datapoints by increasing Period, or decreasing the time range.",
        )
    label = str(request["MetricName"])
    values: dict[int, list[float]] = collections.defaultdict(list)
    for when, value in _values(jobs, request, label):
        if start <= when < end:
            values[int(when // period * period)].append(value)
    wanted = request.get("Statistics") or ()
    unit = request.get("Unit", "None")
    points = [
        {"Timestamp": at, "Unit": "None", **{name: _STATISTICS[name](found) for name in wanted}}
        for at, found in sorted(values.items())
    ]
    return {"Label": label, "Datapoints": points if unit == "None" else []}


def _values(jobs: Jobs, request: Mapping[str, Any], label: str) -> list[tuple[float, float]]:
    dimensions = {item["Name"]: item["Value"] for item in request.get("Dimensions") or ()}
    if request["Namespace"] != NAMESPACE or set(dimensions) != {_DIMENSION}:
        return []
    job = jobs.find(dimensions[_DIMENSION])
    if job is None:
        return []
    return [
        (event.time_ns / 1e9, float(event.data["value"]))
        for event in job.record.events("metric")
        if event.data.get("name") == label
        and isinstance(event.data.get("value"), int | float)
        and math.isfinite(event.data["value"])
    ]


_STATISTICS: Mapping[str, Callable[[list[float]], float]] = {
    "SampleCount": lambda values: float(len(values)),
    "Average": lambda values: sum(values) / len(values),
    "Sum": sum,
    "Minimum": min,
    "Maximum": max,
}
