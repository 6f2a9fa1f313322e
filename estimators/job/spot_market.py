"""A market of spot capacity, to rehearse interruptions with: when which host is taken away, and what it would cost.

Pure: a market is a value, and what it does is a function of it, the hosts, and its seed.
"""

from __future__ import annotations

import bisect
import dataclasses
import heapq
import itertools
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from container.contract.names import shown
from estimators.job.bounds import is_seconds, items_of, range_text
from estimators.job.errors import ConfigurationError
from estimators.job.failure_policy import read_options

_HOUR = 3600.0


@dataclasses.dataclass(frozen=True, order=True)
class Interruption:
    """A host is taken away.

    Attributes:
        at_s: When its notice comes, in seconds since the job's training began.
        host: The host.
        return_after_s: Seconds from when it is gone to when it is back; None for never.
    """

    at_s: float
    host: str
    return_after_s: float | None = dataclasses.field(default=None, compare=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpotMarket:
    """When hosts are interrupted: at listed times, at random, or by price. You can combine these.

    Attributes:
        trace: Interruptions as ``(seconds, host)`` or ``(seconds, host, return_after_s)``. ``seconds`` counts from the
            start of the job's training.
        rate: Mean number of random interruptions per host and hour (a Poisson process).
        notice_s: Seconds between the notice (SIGTERM) and the kill; 120 on AWS.
        return_after_s: Seconds from the kill until the host is replaced; None: never.
        refusals: Share of the requests for another host that are refused at random, from 0 to less than 1.
        retry_s: Seconds from a refused request to the next request.
        outages: ``(from, until)`` in seconds from the start of the job's training. In this time no host returns; hosts
            that are due return at its end.
        price_history: ``(seconds, price)``: the price per host and hour from this time on.
        max_price: Maximum price. While the price is higher, all hosts are interrupted; they return when the price
            falls.
        on_demand_price: The on-demand price per host and hour. With a price history, billable time is the running time,
            multiplied by price ÷ on-demand price, as on AWS. Without a price history, all running time is billable.
        seed: Seed of the random numbers.
    """

    trace: tuple[tuple[Any, ...], ...] = ()
    rate: float = 0.0
    notice_s: float = 120.0
    return_after_s: float | None = 60.0
    refusals: float = 0.0
    retry_s: float = 60.0
    outages: tuple[tuple[float, float], ...] = ()
    price_history: tuple[tuple[float, float], ...] = ()
    max_price: float | None = None
    on_demand_price: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "trace", tuple(sorted(_traced(item) for item in _items("trace", self.trace))))
        object.__setattr__(self, "price_history", _pairs("price_history", "(seconds, price)", self.price_history))
        object.__setattr__(self, "outages", _pairs("outages", "(from, until)", self.outages))
        for name in ("rate", "notice_s", "refusals", "retry_s"):
            _check(name, getattr(self, name))
        for name in ("return_after_s", "max_price", "on_demand_price"):
            if getattr(self, name) is not None:
                _check(name, getattr(self, name))
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise ConfigurationError(f"SpotMarket(seed=…) must be a whole number, got {shown(self.seed)}.")
        for name in ("max_price", "on_demand_price"):
            if getattr(self, name) is not None and not self.price_history:
                raise ConfigurationError(f"SpotMarket({name}=…) needs a price_history.")
        if self.refusals >= 1:
            raise ConfigurationError(
                f"SpotMarket(refusals=…) must be below 1, got {shown(self.refusals)}. For hosts that never come back, "
                "use return_after_s=None."
            )
        for begin, end in self.outages:
            if begin >= end:
                raise ConfigurationError(
                    f"SpotMarket(outages=…): the outage ({begin:g}, {end:g}) ends before it begins."
                )
        if self.on_demand_price == 0:
            raise ConfigurationError("SpotMarket(on_demand_price=…) must be above 0.")

    @classmethod
    def from_dict(cls, values: Any) -> SpotMarket:
        """Read what ``dataclasses.asdict`` gave.

        Raises:
            ConfigurationError: there is no such option, or one is out of range.
        """
        market: SpotMarket = read_options(cls, values, "SpotMarket")
        return market

    @property
    def interrupts(self) -> bool:
        """Whether this market can interrupt a host at all."""
        return bool(self.trace or self.rate or self.max_price is not None)

    def hosts(self) -> set[str]:
        """Return the hosts that the trace names."""
        return {host for _, host, *_ in self.trace}


def interruptions(market: SpotMarket, hosts: Sequence[str]) -> Iterator[Interruption]:
    """All interruptions in the order of their moments; without end where there is a rate.

    Args:
        market: The market.
        hosts: The job's hosts.
    """
    peaks = list(_peaks(market))
    closed = sorted([*peaks, *market.outages])
    traced = (
        Interruption(at_s, host, rest[0] if rest else market.return_after_s) for at_s, host, *rest in market.trace
    )
    # They are gone after the notice, which the price may not wait for.
    outbid = (Interruption(above, host, 0.0) for above, _ in peaks for host in hosts)
    sources: list[Iterable[Interruption]] = [traced, outbid]
    if market.rate:
        sources += [_random(market, host) for host in hosts]
    return (_kept_out(item, market, closed) for item in heapq.merge(*sources))


def _random(market: SpotMarket, host: str) -> Iterator[Interruption]:
    moments = random.Random(f"{market.seed}:{host}")
    now = 0.0
    while True:
        now += moments.expovariate(market.rate / _HOUR)
        yield Interruption(now, host, market.return_after_s)


def _peaks(market: SpotMarket) -> Iterator[tuple[float, float]]:
    """Yield when the price is above the highest one that is paid: from, and until, which may be infinite."""
    if market.max_price is None:
        return
    above: float | None = None
    for at_s, price in (*market.price_history, (math.inf, 0.0)):
        if price > market.max_price and above is None:
            above = at_s
        elif price <= market.max_price and above is not None:
            yield above, at_s
            above = None


def _kept_out(item: Interruption, market: SpotMarket, closed: Iterable[tuple[float, float]]) -> Interruption:
    """Return an interruption whose host comes back when it is given: not when it is refused, nor when there is none.

    Args:
        item: The interruption.
        market: The market.
        closed: When no host comes: from, and until, which may be infinite; sorted.
    """
    if item.return_after_s is None:
        return item
    gone = item.at_s + market.notice_s
    back = gone + item.return_after_s
    if market.refusals:
        back += _refusals(market, item) * market.retry_s
    for begin, end in closed:
        if begin <= back < end:
            back = end
    if back == gone + item.return_after_s:
        return item
    return dataclasses.replace(item, return_after_s=back - gone if math.isfinite(back) else None)


def _refusals(market: SpotMarket, item: Interruption) -> int:
    """Return how often the host is refused that comes for one that was taken."""
    draws = random.Random(f"{market.seed}:{item.host}:{item.at_s!r}")
    return math.floor(math.log(1.0 - draws.random()) / math.log(market.refusals))


def price_seconds(market: SpotMarket, begin: float, end: float) -> float:
    """Return the market's price summed over the seconds of a time; before its first price, that one holds.

    Args:
        market: One with a price history.
        begin: In seconds since the job's training began.
        end: Likewise.
    """
    moments = [at_s for at_s, _ in market.price_history]
    total = 0.0
    for left, right in itertools.pairwise([begin, *(at_s for at_s in moments if begin < at_s < end), end]):
        place = max(0, bisect.bisect_right(moments, left) - 1)
        total += (right - left) * market.price_history[place][1]
    return total


def billable_seconds(market: SpotMarket, spans: Iterable[tuple[float, float]]) -> float:
    """Return what is billed of the time that hosts ran: all of it, or by the price's part of the one on demand.

    Args:
        market: The market.
        spans: When the cluster ran: begin and end in seconds since the job's training began.
    """
    if market.on_demand_price is None or not market.price_history:
        return sum(end - begin for begin, end in spans)
    return sum(price_seconds(market, begin, end) for begin, end in spans) / market.on_demand_price


def savings(training_s: float, billable_s: float) -> float:
    """SageMaker's savings in percent: ``(1 - billable / training) * 100``; 0 for a job that did not train."""
    return (1 - billable_s / training_s) * 100 if training_s > 0 else 0.0


def _items(name: str, value: Any) -> Iterable[Any]:
    return items_of(f"SpotMarket({name}=…)", value)


def _traced(item: Any) -> tuple[Any, ...]:
    entry = tuple(item) if isinstance(item, list | tuple) else ()
    if len(entry) not in (2, 3) or not isinstance(entry[1], str):
        raise ConfigurationError(
            "SpotMarket(trace=…): each item must be (seconds, host) or (seconds, host, return_after_s), such as "
            f"(20, 'algo-2'); got {shown(item)}."
        )
    _check("trace", entry[0])
    if len(entry) == 3 and entry[2] is not None:
        _check("trace", entry[2])
    return entry


def _pairs(name: str, what: str, value: Any) -> tuple[tuple[float, float], ...]:
    found: list[tuple[float, float]] = []
    for item in _items(name, value):
        if not isinstance(item, list | tuple) or len(item) != 2:
            raise ConfigurationError(f"SpotMarket({name}=…): each item must be {what}; got {shown(item)}.")
        for number in item:
            _check(name, number)
        found.append((item[0], item[1]))
    return tuple(sorted(found))


def _check(name: str, value: Any) -> None:
    if not is_seconds(value):  # rates and prices have the same bounds
        raise ConfigurationError(f"SpotMarket({name}=…) must be a number, {range_text(value)}; got {shown(value)}.")
