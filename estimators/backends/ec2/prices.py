"""What hosts cost: reckoned from when each ran and what its pool cost then. Pure."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from estimators.backends.ec2.requests import Lifecycle

_HOUR = 3600.0
#: EC2 bills by the second, and no less than this.
_LEAST_S = 60.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Price:
    """What a spot host cost from a moment on.

    Attributes:
        type: The instance type.
        zone: The zone.
        since: In seconds since the epoch.
        per_hour: US dollars.
    """

    type: str
    zone: str
    since: float
    per_hour: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Span:
    """When an instance ran.

    Attributes:
        type: Its type.
        zone: Its zone.
        lifecycle: How it is paid for.
        began: In seconds since the epoch.
        ended: Likewise; None while it runs.
        taken: Whether EC2 has taken it back.
    """

    type: str
    zone: str
    lifecycle: Lifecycle
    began: float
    ended: float | None = None
    taken: bool = False

    def billed(self, now: float) -> float:
        """Return the seconds that are billed: none, if EC2 took it back in its first hour."""
        seconds = max(0.0, (self.ended if self.ended is not None else now) - self.began)
        if self.lifecycle is Lifecycle.SPOT and self.taken and seconds < _HOUR:
            return 0.0
        return max(_LEAST_S, seconds)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost:
    """What hosts cost, in US dollars.

    Attributes:
        total: As they were paid for.
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


class Prices:
    """The prices that are known.

    Args:
        on_demand: Instance type -> US dollars an hour.
        spot: The spot market's prices.
    """

    def __init__(self, on_demand: Mapping[str, float], spot: Iterable[Price]) -> None:
        self.on_demand = dict(on_demand)
        self._spot: dict[tuple[str, str], list[tuple[float, float]]] = {}
        for price in sorted(spot, key=lambda price: price.since):
            self._spot.setdefault((price.type, price.zone), []).append((price.since, price.per_hour))

    def spot_now(self, type_: str, zone: str) -> float | None:
        """Return what a spot host costs now, in US dollars an hour."""
        series = self._spot.get((type_, zone))
        return series[-1][1] if series else None

    def spot_range(self, type_: str, zone: str) -> tuple[float, float] | None:
        """Return the least and the most that a spot host has cost."""
        series = self._spot.get((type_, zone))
        return (min(price for _, price in series), max(price for _, price in series)) if series else None

    def zones(self, type_: str) -> list[str]:
        """Return the zones in which a type has a price, the cheapest first."""
        found = [zone for known, zone in self._spot if known == type_]
        return sorted(found, key=lambda zone: (self.spot_now(type_, zone) or 0.0, zone))

    def per_hour(self, span: Span) -> float | None:
        """Return what an instance costs now, in US dollars an hour."""
        if span.lifecycle is Lifecycle.SPOT:
            return self.spot_now(span.type, span.zone)
        return self.on_demand.get(span.type)

    def of(self, span: Span, now: float) -> float | None:
        """Return what an instance has cost; None where its price is not known."""
        billed = span.billed(now)
        if span.lifecycle is Lifecycle.ON_DEMAND:
            price = self.on_demand.get(span.type)
            return None if price is None else billed / _HOUR * price
        series = self._spot.get((span.type, span.zone))
        if not series:
            return None
        return _integral(series, span.began, span.began + billed) / _HOUR


def _integral(series: Sequence[tuple[float, float]], begin: float, end: float) -> float:
    """The price's integral; before the first one that is known, that one counts."""
    moments = [moment for moment, _ in series]
    cuts = [begin, *(moment for moment in moments if begin < moment < end), end]
    total = 0.0
    for left, right in itertools.pairwise(cuts):
        total += (right - left) * series[max(0, bisect.bisect_right(moments, left) - 1)][1]
    return total


def cost_of(spans: Iterable[Span], prices: Prices, now: float) -> Cost:
    """Return what instances have cost until now."""
    total, on_demand, seconds = 0.0, 0.0, 0.0
    complete = known = True
    for span in spans:
        cost = prices.of(span, now)
        complete = complete and cost is not None
        total += cost or 0.0
        ran = max(0.0, (span.ended if span.ended is not None else now) - span.began)
        seconds += ran
        price = prices.on_demand.get(span.type)
        known = known and price is not None
        on_demand += max(_LEAST_S, ran) / _HOUR * (price or 0.0)
    return Cost(total=total, on_demand=on_demand if known else None, host_s=seconds, complete=complete)


def hourly(spans: Iterable[Span], prices: Prices) -> float:
    """Return what the instances that run cost together in an hour, as far as their prices are known."""
    return sum(prices.per_hour(span) or 0.0 for span in spans if span.ended is None)
