"""Hosts that the trials of a tuning job share until a deadline: who has how many, and who makes room. Pure.

After Liaw et al., 2019, "HyperSched: Dynamic Resource Reallocation for Model Development on a Deadline": trials are
begun while there is time for them to be compared; then fewer and fewer go on, the most promising ones, on more hosts.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

from container.contract import rules
from container.contract.rules import option


@dataclasses.dataclass(frozen=True, kw_only=True)
class SharedFleetConfig:
    """A fleet that the trials share until a deadline: the tuning job's ``max_runtime_in_seconds``.

    Attributes:
        hosts: Number of hosts of all trials together. A trial starts with the estimator's ``instance_count``, and gets
            at most ``max_hosts`` of the estimator's ``ElasticHorovod``.
        explore: Share of the time in which new trials start. Later, new trials start only if hosts would be idle.
    """

    hosts: int = option(rules.whole(1), dataclasses.MISSING)
    explore: float = option(rules.between_0_and_1, 0.5)

    def __post_init__(self) -> None:
        rules.check(self)


class Standing(NamedTuple):
    """A trial that runs.

    Attributes:
        number: Its number.
        hosts: How many hosts it has; those that are about to leave it among them.
        value: Its last value of the objective, higher being better; None before the first.
    """

    number: int
    hosts: int
    value: float | None


class Shares(NamedTuple):
    """Who is to have what.

    Attributes:
        hosts: How many hosts each trial is to have, by number.
        stopped: Trials that make room for better ones.
    """

    hosts: dict[int, int]
    stopped: tuple[int, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bounds:
    """How many hosts a trial has.

    Attributes:
        least: Those that it begins with.
        most: It has never more.
    """

    least: int
    most: int


def has_room(standings: Sequence[Standing], config: SharedFleetConfig, bounds: Bounds, time_share: float) -> bool:
    """Return whether another trial may begin.

    Args:
        standings: The trials that run.
        config: The fleet.
        bounds: How many hosts a trial has.
        time_share: The share of the time until the deadline that is over.
    """
    taken = sum(max(one.hosts, bounds.least) for one in standings)
    if config.hosts - taken < bounds.least:
        return False
    return time_share < config.explore or all(one.hosts >= bounds.most for one in standings)


def shares(standings: Sequence[Standing], config: SharedFleetConfig, bounds: Bounds, time_share: float) -> Shares:
    """Return how the hosts are to be shared now.

    The better a trial's last value, the sooner it has all the hosts that it can use; nobody has fewer than it began
    with. When the time for exploring is over, the number of trials falls evenly to one at the deadline, as far as the
    hosts of those that are stopped are of use to the others.

    Args:
        standings: The trials that run.
        config: The fleet.
        bounds: How many hosts a trial has.
        time_share: The share of the time until the deadline that is over.
    """
    order = sorted(standings, key=lambda one: (-(one.value if one.value is not None else -math.inf), one.number))
    stopped: list[int] = []
    if time_share >= config.explore and any(one.value is not None for one in order):
        width = config.hosts // bounds.least
        left = max(0.0, 1.0 - time_share) / (1.0 - config.explore)
        wanted = max(1, math.ceil(width * left))
        while len(order) > wanted and _could_use(len(order) - 1, config, bounds):
            stopped.append(order.pop().number)
    hosts = {one.number: bounds.least for one in order}
    spare = config.hosts - bounds.least * len(order)
    for one in order:
        more = max(0, min(bounds.most - bounds.least, spare))
        hosts[one.number] += more
        spare -= more
    return Shares(hosts, tuple(stopped))


def _could_use(count: int, config: SharedFleetConfig, bounds: Bounds) -> bool:
    """Return whether so many trials could use a host more than the fleet leaves them beside one further trial."""
    return count * bounds.most > config.hosts - bounds.least
