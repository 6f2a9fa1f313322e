"""Assigns the hosts that the trials of a tuning job share until a deadline. Pure.

After Liaw et al., 2019, "HyperSched: Dynamic Resource Reallocation for Model Development on a Deadline": trials start
while enough time is left to compare them; later, fewer and fewer trials continue, the most promising ones, on more
hosts.
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
    """A running trial.

    Attributes:
        number: The trial's number.
        hosts: The number of its hosts, including those that are about to leave.
        value: Its last value of the objective, where higher is better; None before the first.
    """

    number: int
    hosts: int
    value: float | None


class Shares(NamedTuple):
    """The assignment of hosts to trials.

    Attributes:
        hosts: Trial's number -> the number of hosts that the trial should have.
        stopped: Trials to stop in favour of better ones.
    """

    hosts: dict[int, int]
    stopped: tuple[int, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bounds:
    """The limits for a trial's hosts.

    Attributes:
        least: The number of hosts that a trial begins with.
        most: The largest number of hosts.
    """

    least: int
    most: int


def has_room(standings: Sequence[Standing], config: SharedFleetConfig, bounds: Bounds, time_share: float) -> bool:
    """Return whether another trial may start.

    Args:
        standings: The running trials.
        config: The fleet.
        bounds: The limits for a trial's hosts.
        time_share: The elapsed share of the time until the deadline.
    """
    taken = sum(max(one.hosts, bounds.least) for one in standings)
    if config.hosts - taken < bounds.least:
        return False
    return time_share < config.explore or all(one.hosts >= bounds.most for one in standings)


def shares(standings: Sequence[Standing], config: SharedFleetConfig, bounds: Bounds, time_share: float) -> Shares:
    """Return how to assign the hosts now.

    Trials with better last values get their additional hosts first; no trial has fewer than it began with. After the
    time for exploring, the number of trials falls evenly to one at the deadline, as long as the others can use the
    hosts of stopped trials.

    Args:
        standings: The running trials.
        config: The fleet.
        bounds: The limits for a trial's hosts.
        time_share: The elapsed share of the time until the deadline.
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
    """Return whether ``count`` trials could use more hosts than the fleet leaves them if one further trial runs."""
    return count * bounds.most > config.hosts - bounds.least
