"""Decide how many hosts of a shared fleet each trial of a tuning job has until a deadline.

The method follows Liaw et al., 2019, "HyperSched: Dynamic Resource Reallocation for Model Development on a Deadline".
New trials start while enough time is left to compare them. Later, the number of trials decreases. The most promising
trials continue on more hosts. The functions have no side effects.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

from container.contract import rules
from container.contract.frozen import dataclass
from container.contract.names import suggests_arguments
from container.contract.rules import option


@suggests_arguments
@dataclass(frozen=True, kw_only=True)
class SharedFleetConfig:
    """A fleet of hosts that the trials share until a deadline. The deadline is the tuning job's
    ``max_runtime_in_seconds``.

    Attributes:
        hosts: The number of hosts of all trials together. A trial starts with as many hosts as the estimator's
            ``instance_count``. It gets at most as many hosts as ``max_hosts`` of the estimator's ``ElasticHorovod``.
        explore: The fraction of the time until the deadline in which new trials start. Later, a new trial starts only
            if hosts would be idle otherwise.
    """

    hosts: int = dataclasses.field(metadata={"rule": rules.whole(1)})
    explore: float = option(rules.between_0_and_1, 0.5)

    def __post_init__(self) -> None:
        rules.check(self)


class Standing(NamedTuple):
    """The facts about a running trial from which its number of hosts is decided.

    Attributes:
        number: The trial's number.
        hosts: The number of the trial's hosts, including hosts that are about to leave.
        value: The last value of the trial's objective, where higher is better. None before the first value.
    """

    number: int
    hosts: int
    value: float | None


class Shares(NamedTuple):
    """An assignment of hosts to trials.

    Attributes:
        hosts: The number of hosts that each trial should have, by the trial's number.
        stopped: The numbers of the trials to stop, so that better trials get their hosts.
    """

    hosts: dict[int, int]
    stopped: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The limits for the number of a trial's hosts.

    Attributes:
        least: The number of hosts that a trial begins with, which is also the least number.
        most: The largest number of hosts.
    """

    least: int
    most: int


def has_room(standings: Sequence[Standing], config: SharedFleetConfig, bounds: Bounds, time_share: float) -> bool:
    """Return whether the free hosts and the elapsed time allow another trial to start.

    Args:
        standings: The running trials.
        config: The fleet.
        bounds: The limits for a trial's hosts.
        time_share: The elapsed fraction of the time until the deadline, from 0 to 1.
    """
    taken = sum(max(one.hosts, bounds.least) for one in standings)
    if config.hosts - taken < bounds.least:
        return False
    return time_share < config.explore or all(one.hosts >= bounds.most for one in standings)


def shares(standings: Sequence[Standing], config: SharedFleetConfig, bounds: Bounds, time_share: float) -> Shares:
    """Return how to assign the hosts to the trials now.

    Each trial has at least the hosts that it began with. The remaining hosts are assigned to the trials in the order of
    their last values, the best first. After the fraction ``explore`` of the time, the number of trials decreases evenly
    to one at the deadline. A trial is stopped only if the other trials can use its hosts.

    Args:
        standings: The running trials.
        config: The fleet.
        bounds: The limits for a trial's hosts.
        time_share: The elapsed fraction of the time until the deadline, from 0 to 1.
    """
    order = sorted(standings, key=lambda one: (-(one.value if one.value is not None else -math.inf), one.number))
    stopped: list[int] = []
    if time_share >= config.explore and any(one.value is not None for one in order):
        width = config.hosts // bounds.least
        left = max(0.0, 1.0 - time_share) / (1.0 - config.explore)
        wanted = max(1, math.ceil(width * left))
        while len(order) > wanted and (len(order) - 1) * bounds.most > config.hosts - bounds.least:
            stopped.append(order.pop().number)
    hosts = {one.number: bounds.least for one in order}
    spare = config.hosts - bounds.least * len(order)
    for one in order:
        more = max(0, min(bounds.most - bounds.least, spare))
        hosts[one.number] += more
        spare -= more
    return Shares(hosts, tuple(stopped))
