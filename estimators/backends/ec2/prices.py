"""Compute the cost of hosts from their running times and prices, with pure functions."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence

from estimators.backends.ec2.options import Ec2Options
from estimators.backends.ec2.requests import Instance
from estimators.job.request import TrainingJobSpec

#: Number of past days for which ``plan()`` shows prices, and maximum number of pools that it shows.
PLAN_DAYS, _SHOWN = 7.0, 8
_HOUR = 3600.0
#: EC2 bills by the second, but at least these seconds.
_LEAST_S = 60.0

#: Prices of a pool, oldest first: start of validity in seconds since the epoch, and US dollars per hour.
Series = Sequence[tuple[float, float]]


@dataclasses.dataclass(frozen=True, kw_only=True)
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prices:
    """The known prices of instance types.

    Attributes:
        on_demand: The on-demand price in US dollars per hour, by instance type.
        spot: The prices of each spot pool, by instance type and zone.
    """

    on_demand: Mapping[str, float] = dataclasses.field(default_factory=dict)
    spot: Mapping[tuple[str, str], Series] = dataclasses.field(default_factory=dict)

    def of(self, instance: Instance) -> Series:
        """Return the prices of an instance over time. Return an empty sequence if the prices are not known."""
        if instance.spot:
            return self.spot.get((instance.type, instance.zone), ())
        return [(0.0, price)] if (price := self.on_demand.get(instance.type)) is not None else ()

    def updated(self, new: Prices) -> Prices:
        """Return these prices, with the prices in ``new`` in place of older ones."""
        return Prices(on_demand={**self.on_demand, **new.on_demand}, spot={**self.spot, **new.spot})

    def hourly(self, instances: Iterable[Instance]) -> float:
        """Return the total price per hour of the running instances, in US dollars. Instances with unknown prices are
        left out.
        """
        return sum(self.of(one)[-1][1] for one in instances if one.ended is None and self.of(one))

    def cost(self, instances: Iterable[Instance], now: float) -> FleetCost:
        """Return the cost of instances until the time ``now``, in seconds since the epoch.

        A spot instance that EC2 interrupts in its first hour is free.
        """
        total = on_demand = seconds = 0.0
        complete = known = True
        for one in instances:
            ran = max(0.0, (one.ended if one.ended is not None else now) - one.launched)
            billed = max(_LEAST_S, ran)
            seconds += ran
            series, price = self.of(one), self.on_demand.get(one.type)
            complete &= bool(series)
            known &= price is not None
            on_demand += billed / _HOUR * (price or 0.0)
            free = one.spot and one.interrupted and ran < _HOUR
            if series and not free:
                total += _integral(series, one.launched, one.launched + billed) / _HOUR
        return FleetCost(total=total, on_demand=on_demand if known else None, host_s=seconds, complete=complete)

    def describe(self, spec: TrainingJobSpec, given: Ec2Options, types: Sequence[str], region: str) -> tuple[str, ...]:
        """Return the lines that describe what a job costs, for ``plan()``.

        Args:
            spec: The job.
            given: The EC2 options of the job.
            types: The instance types. The job's own type is the first one.
            region: The region.
        """
        lines = []
        for type_ in types:
            price = self.on_demand.get(type_)
            shown = "unknown" if price is None else f"${price:.4f} an hour"
            lines.append(f"{type_} in {region}: on-demand price {shown}")
        pools = sorted(
            (series[-1][1], type_, zone, [price for _, price in series])
            for (type_, zone), series in self.spot.items()
            if not given.zones or zone in given.zones
        )
        for now, type_, zone, prices in pools[:_SHOWN]:
            past = f"${min(prices):.4f} to ${max(prices):.4f} in the last {PLAN_DAYS:g} days"
            lines.append(f"spot {type_} in {zone}: ${now:.4f} an hour now, {past}")
        if len(pools) > _SHOWN:
            lines.append(f"spot: {len(pools) - _SHOWN} more pools with higher prices")
        on_demand, hours = self.on_demand.get(types[0]), (spec.stopping.max_run_s or 0) / _HOUR
        if on_demand is None or not hours:
            return tuple(lines)
        hosts = spec.instance_count
        whole = hosts * hours * on_demand
        line = f"at most ({hosts} hosts for max_run, {hours:g} h): ${whole:.2f} on demand"
        if pools:
            base = min(given.on_demand_base, hosts)
            mixed = hours * (base * on_demand + (hosts - base) * pools[0][0])
            saved = (1 - mixed / whole) * 100
            line += f", ${mixed:.2f} with spot capacity at current prices ({saved:.0f} % less)"
        lines.append(line)
        if given.budget is not None:
            lines.append(f"budget: the job is stopped at ${given.budget:.2f}")
        if given.max_price_per_hour is not None:
            lines.append(f"max_price_per_hour: the job is stopped at ${given.max_price_per_hour:.2f} an hour")
        return tuple(lines)


def _integral(series: Series, begin: float, end: float) -> float:
    """Return the integral of a price over time, in US dollars per hour times seconds.

    Before the first known price, the first known price is used.
    """
    moments = [moment for moment, _ in series]
    cuts = [begin, *(moment for moment in moments if begin < moment < end), end]
    total = 0.0
    for left, right in itertools.pairwise(cuts):
        total += (right - left) * series[max(0, bisect.bisect_right(moments, left) - 1)][1]
    return total
