"""Compute the cost of a job from the number of hosts, the hours and the price. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from container.contract.frozen import dataclass
from estimators.job import instances


@dataclass(frozen=True, kw_only=True)
class JobCost:
    """The cost of a job.

    Attributes:
        total: The price of the billable time of all hosts, in US dollars.
        on_demand: The price of the whole training time of all hosts without spot capacity, in US dollars.
        per_hour: The price of one host per hour, in US dollars. If the backend bought hosts, the mean on-demand price.
        source: A text that says where ``per_hour`` comes from.
    """

    total: float
    on_demand: float
    per_hour: float
    source: str

    @property
    def saved(self) -> float:
        """Return the amount that spot capacity saved, in US dollars."""
        return self.on_demand - self.total


def cost_of(
    instance_type: str,
    *,
    hosts: int,
    training_s: float | None,
    billable_s: float | None,
    per_hour: float | None = None,
) -> JobCost | None:
    """Return the cost of a job as SageMaker would bill it: each second of ``BillableTimeInSeconds`` on every host.

    Args:
        instance_type: The hosts' instance type.
        hosts: The number of hosts.
        training_s: The ``TrainingTimeInSeconds`` of the job, or None.
        billable_s: The ``BillableTimeInSeconds`` of the job, or None.
        per_hour: The price of one host per hour in US dollars. None to use the published price.

    Returns:
        The cost. None if the training time or the price per hour is unknown.

    Raises:
        ValueError: the price per hour is below 0.
    """
    if per_hour is not None and not per_hour >= 0:
        raise ValueError(f"a price per hour must be at least 0, got {per_hour!r}.")
    source = "given by the user"
    known = instances.describe(instance_type)
    if per_hour is None:
        if known is None or known.on_demand is None:
            return None
        per_hour, source = known.on_demand, instances.price_source(instance_type)
    if training_s is None:
        return None
    billed = billable_s if billable_s is not None else training_s
    return JobCost(
        total=hosts * billed / 3600.0 * per_hour,
        on_demand=hosts * training_s / 3600.0 * per_hour,
        per_hour=per_hour,
        source=source,
    )


def paid_cost(paid: Mapping[str, Any]) -> JobCost | None:
    """Return the cost of a job for which the backend has bought hosts.

    Args:
        paid: What the backend has paid: the value of ``Result.paid``.

    Returns:
        The cost. None if the price of a host is unknown.
    """
    if not paid.get("complete"):
        return None
    total, hours = float(paid["total"]), float(paid["host_s"]) / 3600.0
    on_demand = total if paid.get("on_demand") is None else float(paid["on_demand"])
    return JobCost(
        total=total,
        on_demand=on_demand,
        per_hour=on_demand / hours if hours else 0.0,
        source="the hosts' own prices while they ran",
    )
