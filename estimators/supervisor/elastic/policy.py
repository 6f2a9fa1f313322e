"""The rules of an elastic membership. Pure: time is an argument, nothing is started."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Protocol

from estimators.job.failure_policy import pause_s

#: #: The names of a worker and of its host.
Placed = tuple[str, str]


class ExclusionPolicy(Protocol):
    """Decides for how long a host is excluded after one of its workers failed."""

    def failed(self, host: str, now: float) -> float:
        """Return until when a host is excluded after one of its workers failed.

        Args:
            host: The host.
            now: Seconds on a clock that does not go back.

        Returns:
            The time until which no new worker starts on the host, on the same clock.
        """


@dataclasses.dataclass
class GrowingCooldown:
    """Excludes a host for ``shortest`` seconds, doubled with each further failure, up to ``longest``.

    Horovod's own rule excludes a host for ever or, with a range, at first for twice the shortest time
    (``runner/elastic/discovery.py`` counts before it shifts). A failure more than ``forget_after`` seconds after the
    previous one counts as the first again.

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
        """Return until when a host is excluded after a failure; see :class:`ExclusionPolicy`."""
        count, last = self._failures.get(host, (0, now))
        count = 1 if now - last > self.forget_after else count + 1
        self._failures[host] = (count, now)
        return now + pause_s(self.shortest, self.longest, count)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """The sizes of a membership, and how much it may change at once.

    Attributes:
        first: Workers that the training begins with.
        least: Workers below which the training waits for others.
        most: Workers above which the membership does not grow.
        max_join: Hosts that may join at once; None for any number.
        max_leave: Hosts that may leave at once; None for any number.
        grow_every: The least time between two growths, in seconds.
    """

    first: int
    least: int
    most: int
    max_join: int | None = None
    max_leave: int | None = None
    grow_every: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Offer:
    """Which workers should be in the cluster next.

    Attributes:
        workers: Their names, oldest first.
        again_at: When to decide again, because a limit delays a change until then; None: no set time.
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
    """Decide which workers should be in the cluster next.

    Args:
        current: The workers that are in the cluster and alive, oldest first.
        ready: Every worker that is alive and can join, with its host, oldest first; includes the current ones.
        leaving: Hosts that have been told to leave, in the order of those requests.
        limits: How much may change at once.
        now: Seconds on a clock that does not go back.
        grown_at: When the cluster last grew, on the same clock; None: never.
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
