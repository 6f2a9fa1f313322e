"""Compute the cost of hosts from their running times and prices, with pure functions."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Mapping, Sequence

from container.contract.frozen import dataclass
from estimators.backends.ec2.options import Ec2Options
from estimators.backends.ec2.requests import Instance
from estimators.job.request import TrainingJobSpec

#: Number of past days for which ``plan()`` shows prices, and maximum number of pools that it shows. A pool is an
#: instance type in an availability zone.
PLAN_DAYS, _SHOWN = 7.0, 8
_HOUR = 3600.0
#: EC2 bills by the second, but at least these seconds.
_LEAST_S = 60.0

#: Prices of a pool, oldest first: start of validity in seconds since the epoch, and US dollars per hour.
Series = Sequence[tuple[float, float]]
#: The known prices by instance type and zone. The zone "" has the on-demand price of a type, which does not change.
Prices = Mapping[tuple[str, str], Series]


@dataclass(frozen=True, kw_only=True)
class FleetCost:
    """The cost of hosts, in US dollars.

    Attributes:
        total: The amount that EC2 bills for the hosts.
        on_demand: The amount that all hosts would have cost at on-demand prices, or None if a price is not known.
        host_s: The sum of all hosts' running times, in seconds.
        complete: Whether the price of each host was known.
    """

    total: float
    on_demand: float | None
    host_s: float
    complete: bool = True


def hourly(prices: Prices, instances: Iterable[Instance]) -> float:
    """Return the total price per hour of the running instances, in US dollars. Instances with unknown prices are
    left out.
    """
    return sum(prices[one.pool][-1][1] for one in instances if one.ended is None and one.pool in prices)


def cost(prices: Prices, instances: Sequence[Instance], now: float) -> FleetCost:
    """Return the cost of instances until the time ``now``, in seconds since the epoch.

    A spot instance that EC2 interrupts in its first hour is free.
    """
    total = on_demand = seconds = 0.0
    for one in instances:
        ran = max(0.0, (one.ended if one.ended is not None else now) - one.launched)
        end = one.launched + max(_LEAST_S, ran)
        seconds += ran
        on_demand += _integral(prices.get((one.type, ""), ()), one.launched, end)
        if not (one.spot and one.interrupted and ran < _HOUR):
            total += _integral(prices.get(one.pool, ()), one.launched, end)
    known = all((one.type, "") in prices for one in instances)
    complete = all(one.pool in prices for one in instances)
    return FleetCost(total=total, on_demand=on_demand if known else None, host_s=seconds, complete=complete)


def describe(
    prices: Prices, spec: TrainingJobSpec, given: Ec2Options, types: Sequence[str], region: str
) -> tuple[str, ...]:
    """Return the lines that describe what a job costs, for ``plan()``.

    Args:
        prices: The known prices.
        spec: The job.
        given: The EC2 options of the job.
        types: The instance types. The job's own type is the first one.
        region: The region.
    """
    on_demand = {type_: series[-1][1] for (type_, zone), series in prices.items() if not zone}
    lines = []
    for type_ in types:
        price = f"${on_demand[type_]:.4f} an hour" if type_ in on_demand else "unknown"
        lines.append(f"{type_} in {region}: on-demand price {price}")
    pools = sorted(
        (series[-1][1], type_, zone, [price for _, price in series])
        for (type_, zone), series in prices.items()
        if zone and (not given.zones or zone in given.zones)
    )
    for now, type_, zone, past in pools[:_SHOWN]:
        spread = f"${min(past):.4f} to ${max(past):.4f} in the last {PLAN_DAYS:g} days"
        lines.append(f"spot {type_} in {zone}: ${now:.4f} an hour now, {spread}")
    if len(pools) > _SHOWN:
        lines.append(f"spot: {len(pools) - _SHOWN} more pools with higher prices")
    hosts, hours = spec.instance_count, (spec.stopping.max_run_s or 0) / _HOUR
    if types[0] not in on_demand or not hours:
        return tuple(lines)
    whole = hosts * hours * on_demand[types[0]]
    line = f"at most ({hosts} hosts for max_run, {hours:g} h): ${whole:.2f} on demand"
    if pools:
        base = min(given.on_demand_base, hosts)
        mixed = hours * (base * on_demand[types[0]] + (hosts - base) * pools[0][0])
        saved = (1 - mixed / whole) * 100
        line += f", ${mixed:.2f} with spot capacity at current prices ({saved:.0f} % less)"
    lines.append(line)
    if given.budget is not None:
        lines.append(f"budget: the job is stopped at ${given.budget:.2f}")
    if given.max_price_per_hour is not None:
        lines.append(f"max_price_per_hour: the job is stopped at ${given.max_price_per_hour:.2f} an hour")
    return tuple(lines)


def _integral(series: Series, begin: float, end: float) -> float:
    """Return the cost of an instance from ``begin`` to ``end`` in US dollars. Return 0 if ``series`` has no prices.

    For the time before the first known price, the first known price is used. Times are in seconds since the epoch.
    """
    if not series:
        return 0.0
    moments = [moment for moment, _ in series]
    cuts = [begin, *(moment for moment in moments if begin < moment < end), end]
    return sum(
        (right - left) / _HOUR * series[max(0, bisect.bisect_right(moments, left) - 1)][1]
        for left, right in itertools.pairwise(cuts)
    )
