"""Describe the hosts and workers of an elastic job as its supervisor sees them.

A host's toolkit is the process that starts the workers of the host. The states of a host are ``starting`` (the toolkit
is starting), ``ready``, ``leaving`` (it was told to leave) and ``gone``. The states of a worker are ``preparing`` (it
is importing its modules), ``ready`` (it is waiting for a rank), ``placed`` (it has a rank), ``restarting`` and
``ended``.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable
from typing import Any

from container.contract.elastic import worker_name
from container.contract.failures import Failure


class HostState(enum.Enum):
    """The state of a host."""

    STARTING = "starting"
    READY = "ready"
    LEAVING = "leaving"
    GONE = "gone"


class WorkerState(enum.Enum):
    """The state of a worker."""

    PREPARING = "preparing"
    READY = "ready"
    PLACED = "placed"
    #: The worker was told to restart. It remains a member of the cluster until it gets a new rank.
    RESTARTING = "restarting"
    ENDED = "ended"

    @property
    def has_place(self) -> bool:
        """Return whether the worker has a place in the cluster, or had one until it was told to restart."""
        return self in (WorkerState.PLACED, WorkerState.RESTARTING)


@dataclasses.dataclass
class ElasticHost:
    """The facts that the supervisor knows about a host."""

    name: str
    state: HostState = HostState.STARTING
    workers: dict[int, Worker] = dataclasses.field(default_factory=dict)  # the latest worker of each slot
    counts: dict[int, int] = dataclasses.field(default_factory=dict)  # the number of workers that each slot has had
    slots: int = 1
    excluded_until: float = 0.0  # on the controller's clock
    replace: bool = True  # whether the host is replaced if it is lost
    up: bool = False  # whether the host's toolkit has come up
    failure: Failure | None = None  # the toolkit's report why the host cannot take part
    origin: str = ""  # see `known_as`: the first in a chain of replaced hosts that never came up
    address: str = ""  # the address and the reserved ports that the host has reported
    ports: tuple[int, ...] = ()
    spare: bool = False  # whether the host is kept ready without taking part
    noticed: bool = False  # whether the host has got a notice; it leaves, and its workers work until it has left

    @property
    def known_as(self) -> str:
        """Return the name under which the host's failures are counted.

        A host that has never started and the host that replaces it are counted as one host.
        """
        return self.name if self.up else self.origin or self.name


@dataclasses.dataclass
class Worker:
    """The facts that the supervisor knows about a worker."""

    name: str
    host: str
    slot: int
    state: WorkerState = WorkerState.PREPARING
    rank: int | None = None
    ended_with: int | None = None  # the exit code of the worker, or of its script if only the script has ended
    leaves: bool = False  # whether the worker was told to exit because it lost its place


class Roster:
    """The hosts and workers of a job. The class answers queries and makes no decisions.

    Over time, a job may have many more hosts than at any one moment. Therefore, at each new membership, ended hosts and
    workers are removed from the lists that queries search. The duration of a query then depends only on the number of
    present hosts.

    Args:
        initial: The hosts that the attempt starts with.
        slots: The number of workers on each initial host.
        restarts: Whether the training's state is in its checkpoints, so that the training can continue even if all
            members are lost.

    Attributes:
        hosts: All hosts that the attempt has had, by name.
        workers: All workers that the attempt has had, by name.
        members: The names of the workers of the last membership, by rank.
        leaving: The names of the leaving hosts, in the order in which they were told to leave.
    """

    def __init__(self, initial: Iterable[str], slots: int, *, restarts: bool = False) -> None:
        self.restarts = restarts
        self.hosts: dict[str, ElasticHost] = {name: ElasticHost(name, slots=slots) for name in initial}
        self.workers: dict[str, Worker] = {}
        self.members: tuple[str, ...] = ()
        self._initial = dict.fromkeys(self.hosts)
        self.leaving: list[str] = []
        self._present = list(self.hosts.values())
        self._working: list[Worker] = []

    def add(self, host: ElasticHost) -> None:
        """Add a host. The host's name must be new."""
        self.hosts[host.name] = host
        self._present.append(host)

    @property
    def present_hosts(self) -> list[ElasticHost]:
        """Return the hosts that have not ended, in the order in which they were added."""
        return [host for host in self._present if host.state is not HostState.GONE]

    @property
    def running(self) -> list[str]:
        """Return the names of the hosts that have not ended."""
        return [host.name for host in self.present_hosts]

    @property
    def taking_part(self) -> list[str]:
        """Return the names of the running hosts that are not spare."""
        return [host.name for host in self.present_hosts if not host.spare]

    @property
    def staying(self) -> list[str]:
        """Return the names of the running hosts that are neither spare nor leaving."""
        return [host.name for host in self.present_hosts if not host.spare and host.state is not HostState.LEAVING]

    @property
    def spare(self) -> ElasticHost | None:
        """Return a spare host that is ready to join at once. Return None if there is no such host."""
        return next((host for host in self.present_hosts if host.spare and host.state is HostState.READY), None)

    @property
    def alive(self) -> list[Worker]:
        """Return the workers that are in the cluster or can join it."""
        hosts, preparing, ended = self.hosts, WorkerState.PREPARING, WorkerState.ENDED
        return [
            worker
            for worker in self._working
            if worker.state is not preparing and worker.state is not ended and not hosts[worker.host].spare
        ]

    @property
    def preparing(self) -> int:
        """Return the number of workers that are importing their modules."""
        return sum(worker.state is WorkerState.PREPARING for worker in self._working)

    @property
    def there(self) -> list[Worker]:
        """Return the workers that are in the cluster or can join it, and whose hosts are not leaving."""
        return [worker for worker in self.alive if self.hosts[worker.host].state is not HostState.LEAVING]

    @property
    def missing(self) -> list[ElasticHost]:
        """Return the hosts of the last membership that have no available worker.

        Before the first membership, the initial hosts are considered.
        """
        hosts = {self.workers[name].host: None for name in self.members} or self._initial
        there = {worker.host for worker in self.there}
        return [self.hosts[name] for name in hosts if name not in there]

    @property
    def members_left(self) -> int:
        """Return the number of members that are alive."""
        hosts = self.hosts
        members = (self.workers[name] for name in self.members)
        return sum(
            worker.state is not WorkerState.PREPARING
            and worker.state is not WorkerState.ENDED
            and not hosts[worker.host].spare
            for worker in members
        )

    def present(self, name: str) -> ElasticHost:
        """Return a host that has not ended.

        Raises:
            ValueError: the job has no such host.
        """
        host = self.hosts.get(name)
        if host is None or host.state is HostState.GONE:
            raise ValueError(f"{name!r} is not a host of the job; its hosts: {', '.join(self.running) or 'none'}.")
        return host

    def new_worker(self, host: ElasticHost, slot: int) -> Worker:
        """Create a new worker for a slot of a host."""
        number = host.counts.get(slot, 0)
        host.counts[slot] = number + 1
        worker = Worker(worker_name(host.name, slot, number), host.name, slot)
        host.workers[slot] = self.workers[worker.name] = worker
        self._working.append(worker)
        return worker

    def take_places(self, members: tuple[str, ...]) -> None:
        """Set a new membership.

        Args:
            members: The names of the workers, by rank.
        """
        self._present = self.present_hosts
        self._working = [worker for worker in self._working if worker.state is not WorkerState.ENDED]
        for name in self.members:
            self.workers[name].rank = None
        self.members = members
        for rank, name in enumerate(members):
            self.workers[name].rank = rank

    def trains_without(self, name: str) -> bool:
        """Return whether a member trains on a host that is not ``name`` and is not leaving."""
        return any(
            worker.state.has_place and worker.host != name and self.hosts[worker.host].state is not HostState.LEAVING
            for worker in (self.workers[member] for member in self.members)
        )

    def with_rank(self, rank: int) -> Worker | None:
        """Return the worker that currently has a rank. Return None if no placed worker has the rank."""
        worker = self.workers[self.members[rank]] if 0 <= rank < len(self.members) else None
        return worker if worker is not None and worker.state is WorkerState.PLACED else None

    def rank_of(self, host: str, process: str | None) -> int | None:
        """Return the current rank of a host's process. Return None for a process without a rank."""
        name, _, slot = (process or "").partition(" ")
        if host not in self.hosts or name != "worker" or not slot.isdecimal():
            return None
        worker = self.hosts[host].workers.get(int(slot))
        return worker.rank if worker is not None else None

    def to_list(self) -> list[dict[str, Any]]:
        """Return a dict with ``name``, ``state`` and ``ranks`` for each host, for the job's status and for display."""
        ranks: dict[str, list[int]] = {}
        for rank, name in enumerate(self.members):
            ranks.setdefault(self.workers[name].host, []).append(rank)
        return [
            {
                "name": host.name,
                "state": "spare" if host.spare and host.state is not HostState.GONE else host.state.value,
                "ranks": ranks.get(host.name, []),
            }
            for host in self.hosts.values()
        ]
