"""Define the rules for the sizes and changes of an elastic membership, and for excluded hosts.

The module uses no clock: the time is an argument.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Protocol

from container.contract.frozen import dataclass
from estimators.job.failure_policy import pause_s

#: The names of a worker and of its host.
Placed = tuple[str, str]


class ExclusionPolicy(Protocol):
    """The interface of the rule that decides how long a host is excluded after the failure of one of its workers."""

    def failed(self, host: str, now: float) -> float:
        """Return the time until which a host is excluded after the failure of one of its workers.

        Args:
            host: The name of the host.
            now: The current time, in seconds on a monotonic clock.

        Returns:
            The time until which no new worker starts on the host, on the same clock as ``now``.
        """


@dataclasses.dataclass
class GrowingCooldown:
    """The rule that excludes a host for ``shortest`` seconds. Each additional failure doubles the time, up to
    ``longest``.

    By default, Horovod excludes a host for ever. If a cooldown range is configured, Horovod's first exclusion takes
    twice the shortest time (``runner/elastic/discovery.py`` increments its counter before it computes the delay). In
    this class, the first exclusion takes the shortest time. If the previous failure was more than ``forget_after``
    seconds ago, a failure counts as the first one again.

    Attributes:
        shortest: The first exclusion, in seconds.
        longest: The longest exclusion, in seconds.
        forget_after: The time after which failures are forgotten, in seconds.
    """

    shortest: float = 1.0
    longest: float = 60.0
    forget_after: float = 3600.0
    _failures: dict[str, tuple[int, float]] = dataclasses.field(default_factory=dict)

    def failed(self, host: str, now: float) -> float:
        """Return the time until which a host is excluded after a failure. See :class:`ExclusionPolicy`."""
        count, last = self._failures.get(host, (0, now))
        count = 1 if now - last > self.forget_after else count + 1
        self._failures[host] = (count, now)
        return now + pause_s(self.shortest, self.longest, count)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The allowed sizes of a membership, and how much may change at once.

    Attributes:
        first: The number of workers that the training begins with.
        least: The least number of workers. With fewer workers, the training waits.
        most: The largest number of workers.
        max_join: The largest number of hosts that may join at once. None for no limit.
        max_leave: The largest number of hosts that may leave at once. None for no limit.
        grow_every: The least time between two increases of the size, in seconds.
    """

    first: int
    least: int
    most: int
    max_join: int | None = None
    max_leave: int | None = None
    grow_every: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Offer:
    """The workers that the cluster should have next.

    Attributes:
        workers: The names of the workers, oldest first.
        again_at: The time at which to decide again, if a limit delays a change. None if no change is delayed.
    """

    workers: tuple[str, ...]
    again_at: float | None = None


def next_offer(
    current: Sequence[str],
    ready: Iterable[Placed],
    leaving: Iterable[str],
    limits: Limits,
    *,
    now: float,
    grown_at: float | None,
) -> Offer:
    """Decide which workers the cluster should have next.

    Args:
        current: The workers that are in the cluster and alive, oldest first.
        ready: All workers that are in the cluster or can join it, each with its host, oldest first. The workers in
            ``current`` are included.
        leaving: The hosts that have been told to leave, in the order in which they were told.
        limits: The limits for one change.
        now: The current time, in seconds on a monotonic clock.
        grown_at: When the cluster last grew, on the same clock as ``now``. None if the cluster has never grown.
    """
    hosts = dict(ready)
    leaving = list(leaving)
    told = set(leaving[: limits.max_leave] if limits.max_leave is not None else leaving)
    staying = [worker for worker in current if worker in hosts and hosts[worker] not in told]
    others = hosts.keys() - set(current)
    if not others:
        return Offer(workers=tuple(staying))
    there = {hosts[worker] for worker in staying}
    joining: list[str] = []
    joined: set[str] = set()
    again_at: float | None = None
    for worker, host in hosts.items():
        if worker not in others or host in leaving or len(staying) + len(joining) >= limits.most:
            continue
        if current and grown_at is not None and now < grown_at + limits.grow_every and len(staying) >= limits.least:
            again_at = grown_at + limits.grow_every
            continue
        if current and host not in there and host not in joined:
            if limits.max_join is not None and len(joined) >= limits.max_join:
                again_at = now if again_at is None else again_at
                continue
            joined.add(host)
        joining.append(worker)
    return Offer(workers=(*staying, *joining), again_at=again_at)
