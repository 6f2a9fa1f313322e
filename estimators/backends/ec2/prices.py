"""What hosts cost: reckoned from when each ran and what its pool cost then. Pure."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from estimators.backends.ec2.requests import Instance, Lifecycle

_HOUR = 3600.0
#: EC2 bills by the second, and no less than this.
_LEAST_S = 60.0

#: The prices of a pool: from which moment on, in seconds since the epoch, and US dollars an hour; the oldest first.
Series = Sequence[tuple[float, float]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class FleetCost:
    """What hosts cost, in US dollars.

    Attributes:
        total: The amount that is paid.
        on_demand: What all of them would have cost on demand, for all their time; None where no such price is known.
        host_s: The seconds that they ran, of all hosts together.
        complete: Whether the price of each was known.
    """

    total: float
    on_demand: float | None
    host_s: float
    complete: bool = True

    def to_dict(self) -> dict[str, Any]:
        """Return it as the job's status keeps it."""
        return {
            "total": round(self.total, 9),
            "on_demand": None if self.on_demand is None else round(self.on_demand, 9),
            "host_s": round(self.host_s, 1),
            "complete": self.complete,
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prices:
    """The prices that are known.

    Attributes:
        on_demand: Instance type -> US dollars an hour.
        spot: Instance type and zone -> the prices of that pool.
    """

    on_demand: Mapping[str, float] = dataclasses.field(default_factory=dict)
    spot: Mapping[tuple[str, str], Series] = dataclasses.field(default_factory=dict)

    def of(self, instance: Instance) -> Series:
        """Return the prices of an instance's pool; empty where they are not known."""
        if instance.lifecycle is Lifecycle.SPOT:
            return self.spot.get((instance.type, instance.zone), ())
        return [(0.0, price)] if (price := self.on_demand.get(instance.type)) is not None else ()

    def updated(self, new: Prices) -> Prices:
        """Return them with newer ones; where no newer one is known, the price that was known counts on."""
        return Prices(on_demand={**self.on_demand, **new.on_demand}, spot={**self.spot, **new.spot})

    def hourly(self, instances: Iterable[Instance]) -> float:
        """Return what the instances that run cost together in an hour, as far as their prices are known."""
        return sum(self.of(one)[-1][1] for one in instances if one.ended is None and self.of(one))

    def cost(self, instances: Iterable[Instance], now: float) -> FleetCost:
        """Return what instances have cost until now: nothing, if EC2 has interrupted one in its first hour."""
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
            free = one.lifecycle is Lifecycle.SPOT and one.interrupted and ran < _HOUR
            if series and not free:
                total += _integral(series, one.launched, one.launched + billed) / _HOUR
        return FleetCost(total=total, on_demand=on_demand if known else None, host_s=seconds, complete=complete)


def _integral(series: Series, begin: float, end: float) -> float:
    """Return the price's integral; before the first one that is known, that one counts."""
    moments = [moment for moment, _ in series]
    cuts = [begin, *(moment for moment in moments if begin < moment < end), end]
    total = 0.0
    for left, right in itertools.pairwise(cuts):
        total += (right - left) * series[max(0, bisect.bisect_right(moments, left) - 1)][1]
    return total
