"""Simulate a market of spot capacity: determine when each host is taken away. Users test interruptions with it.

The functions are pure: the interruptions depend only on the market and the hosts.
"""

from __future__ import annotations

import dataclasses
import heapq
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from container.contract import rules
from container.contract.frozen import dataclass
from container.contract.names import shown, suggests_arguments
from container.contract.rules import option
from estimators.job.bounds import MAX_SECONDS
from estimators.job.errors import ConfigurationError

_HOUR = 3600.0
_SECONDS = rules.number(0, MAX_SECONDS)
_MOST_SEED = 1 << 63


@dataclasses.dataclass(frozen=True, order=True)
class Interruption:
    """An interruption of a host.

    Attributes:
        at_s: The time of the notice, in seconds since the start of the job's training.
        host: The host.
        return_after_s: The number of seconds from the loss of the host until its return. None if the host never
            returns.
    """

    at_s: float
    host: str
    return_after_s: float | None = dataclasses.field(default=None, compare=False)


def _trace(where: str, value: Any) -> tuple[tuple[Any, ...], ...]:
    found = []
    for item in rules.items_of(where, value):
        entry = tuple(item) if isinstance(item, list | tuple) else ()
        if len(entry) not in (2, 3) or not isinstance(entry[1], str):
            raise ConfigurationError(
                f"{where}: each item must be (seconds, host) or (seconds, host, return_after_s), such as "
                f"(20, 'algo-2'); got {shown(item)}."
            )
        for seconds in (entry[0], *(each for each in entry[2:] if each is not None)):
            _SECONDS(where, seconds)
        found.append(entry)
    return tuple(sorted(found, key=lambda entry: entry[:2]))


@suggests_arguments
@dataclass(frozen=True, kw_only=True)
class SpotMarket:
    """A simulated spot market, which interrupts hosts at the times of a trace, at random times, or both.

    Attributes:
        trace: The interruptions as ``(seconds, host)`` or ``(seconds, host, return_after_s)``. ``seconds`` is the time
            since the start of the job's training.
        rate: The mean number of random interruptions per host and hour.
        notice_s: The number of seconds between the notice (SIGTERM) and the kill. AWS gives 120 s.
        return_after_s: The number of seconds from the kill until the host is replaced. None if the host is never
            replaced.
        seed: The seed of the random interruptions.
    """

    trace: Sequence[Sequence[Any]] = option(_trace, ())
    rate: float = option(_SECONDS, 0.0)
    notice_s: float = option(_SECONDS, 120.0)
    return_after_s: float | None = option(rules.or_none(_SECONDS), 60.0)
    seed: int = option(rules.whole(-_MOST_SEED, _MOST_SEED), 0)

    def __repr__(self) -> str:
        return rules.text_of(self)

    def __post_init__(self) -> None:
        rules.check(self)

    @property
    def interrupts(self) -> bool:
        """Return whether this market can interrupt any host."""
        return bool(self.trace or self.rate)

    def of_run(self, number: int) -> SpotMarket:
        """Return the market for one of several simulated runs. Its seed is this market's seed plus ``number``, so that
        each run has different random interruptions.

        If the sum exceeds the largest possible seed, the count continues at the smallest possible seed.
        """
        seed = (self.seed + number + _MOST_SEED) % (2 * _MOST_SEED + 1) - _MOST_SEED
        return dataclasses.replace(self, seed=seed)

    def hosts(self) -> set[str]:
        """Return the names of the hosts in the trace."""
        return {host for _, host, *_ in self.trace}


def interruptions(market: SpotMarket, hosts: Sequence[str]) -> Iterator[Interruption]:
    """Return all interruptions in chronological order. The iterator is infinite if the market has a rate.

    Args:
        market: The market.
        hosts: The job's hosts, to which the random interruptions apply.
    """
    traced = (
        Interruption(at_s, host, rest[0] if rest else market.return_after_s) for at_s, host, *rest in market.trace
    )
    sources: list[Iterable[Interruption]] = [traced]
    if market.rate:
        sources += [_random(market, host) for host in hosts]
    return heapq.merge(*sources)


def _random(market: SpotMarket, host: str) -> Iterator[Interruption]:
    moments = random.Random(f"{market.seed}:{host}")
    now = 0.0
    while True:
        now += moments.expovariate(market.rate / _HOUR)
        yield Interruption(now, host, market.return_after_s)
