"""Who there is in an elastic job: hosts and their workers, as the supervisor knows them.

A host's life: ``starting`` (its toolkit comes up), ``ready``, ``leaving`` (it was told to), ``gone``. A worker's:
``preparing`` (it imports), ``ready`` (it waits for its place), ``placed``, ``restarting``, ``ended``.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable
from typing import Any

from container.contract.elastic import worker_name
from container.contract.failures import Failure


class HostState(enum.Enum):
    """What a host is doing."""

    STARTING = "starting"
    READY = "ready"
    LEAVING = "leaving"
    GONE = "gone"


class WorkerState(enum.Enum):
    """What a worker is doing."""

    PREPARING = "preparing"
    READY = "ready"
    PLACED = "placed"
    #: It was told to start again, and is a member until it has another place.
    RESTARTING = "restarting"
    ENDED = "ended"

    @property
    def has_place(self) -> bool:
        """Whether it is in the cluster, as far as it has heard."""
        return self in (WorkerState.PLACED, WorkerState.RESTARTING)


@dataclasses.dataclass
class ElasticHost:
    """A host, as far as the supervisor knows."""

    name: str
    state: HostState = HostState.STARTING
    workers: dict[int, Worker] = dataclasses.field(default_factory=dict)  # the last one of each slot
    counts: dict[int, int] = dataclasses.field(default_factory=dict)
    slots: int = 1
    excluded_until: float = 0.0
    replace: bool = True  # whether another host is started if it is lost
    up: bool = False  # whether its toolkit has come up
    failure: Failure | None = None  # why it cannot take part, as its toolkit has said
    origin: str = ""  # the lost host that it replaces, or that one's, while none of them has come up
    address: str = ""  # where the others reach it, and the ports that are reserved for it, as it has said
    ports: tuple[int, ...] = ()
    spare: bool = False  # whether it is kept ready, without taking part
    noticed: bool = False  # whether it leaves because it will be taken away, and not before

    @property
    def known_as(self) -> str:
        """The name under which its failures count: those of hosts of which none has come up count together."""
        return self.name if self.up else self.origin or self.name


@dataclasses.dataclass
class Worker:
    """A worker, as far as the supervisor knows."""

    name: str
    host: str
    slot: int
    state: WorkerState = WorkerState.PREPARING
    rank: int | None = None
    ended_with: int | None = None  # its exit code; of one that has a place still, how its script has ended
    leaves: bool = False  # whether it was told to end, as it has no place any more


class Roster:
    """The hosts of a job and their workers; what is asked of them, and nothing that is decided.

    A job may have had many more hosts than it has: what is asked costs as much as there are now. So who has gone, or
    ended, which is for ever, is not looked at again after the next membership.

    Args:
        initial: The hosts that it starts with.
        slots: How many workers each of them has.
        restarts: Whether the training's state is in its checkpoints, so that no member need be left to go on.

    Attributes:
        hosts: All that there have been, by name.
        workers: Likewise.
        members: The workers of the last membership, by rank.
        leaving: The hosts that are to leave, in that order.
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
        """There is another host, of a name that none has had."""
        self.hosts[host.name] = host
        self._present.append(host)

    @property
    def present_hosts(self) -> list[ElasticHost]:
        """The hosts that have not ended, in the order in which they came."""
        return [host for host in self._present if host.state is not HostState.GONE]

    @property
    def running(self) -> list[str]:
        """The names of the hosts that have not ended."""
        return [host.name for host in self.present_hosts]

    @property
    def taking_part(self) -> list[str]:
        """Those of them that are not spare."""
        return [host.name for host in self.present_hosts if not host.spare]

    @property
    def staying(self) -> list[str]:
        """Those of these that are not about to leave."""
        return [host.name for host in self.present_hosts if not host.spare and host.state is not HostState.LEAVING]

    @property
    def spare(self) -> ElasticHost | None:
        """A spare host that could join at once."""
        return next((host for host in self.present_hosts if host.spare and host.state is HostState.READY), None)

    @property
    def alive(self) -> list[Worker]:
        """The workers that have a place or can take one."""
        hosts, preparing, ended = self.hosts, WorkerState.PREPARING, WorkerState.ENDED
        return [
            worker
            for worker in self._working
            if worker.state is not preparing and worker.state is not ended and not hosts[worker.host].spare
        ]

    @property
    def preparing(self) -> int:
        """How many workers import."""
        return sum(worker.state is WorkerState.PREPARING for worker in self._working)

    @property
    def there(self) -> list[Worker]:
        """The workers that are alive, whose hosts are not about to leave."""
        return [worker for worker in self.alive if self.hosts[worker.host].state is not HostState.LEAVING]

    @property
    def missing(self) -> list[ElasticHost]:
        """The hosts that took part last, or are to begin, and have no worker there."""
        hosts = {self.workers[name].host: None for name in self.members} or self._initial
        there = {worker.host for worker in self.there}
        return [self.hosts[name] for name in hosts if name not in there]

    @property
    def members_left(self) -> int:
        """How many of the members are alive."""
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
            ValueError: there is none of that name.
        """
        host = self.hosts.get(name)
        if host is None or host.state is HostState.GONE:
            raise ValueError(f"{name!r} is not a host of the job; its hosts: {', '.join(self.running) or 'none'}.")
        return host

    def new_worker(self, host: ElasticHost, slot: int) -> Worker:
        """Another worker for a slot of a host."""
        number = host.counts.get(slot, 0)
        host.counts[slot] = number + 1
        worker = Worker(worker_name(host.name, slot, number), host.name, slot)
        host.workers[slot] = self.workers[worker.name] = worker
        self._working.append(worker)
        return worker

    def take_places(self, members: tuple[str, ...]) -> None:
        """There is a new membership: the workers of it, by rank."""
        self._present = self.present_hosts
        self._working = [worker for worker in self._working if worker.state is not WorkerState.ENDED]
        for name in self.members:
            self.workers[name].rank = None
        self.members = members
        for rank, name in enumerate(members):
            self.workers[name].rank = rank

    def trains_without(self, name: str) -> bool:
        """Return whether a member is left when a host has gone, and those that are leaving."""
        return any(
            worker.state.has_place and worker.host != name and self.hosts[worker.host].state is not HostState.LEAVING
            for worker in (self.workers[member] for member in self.members)
        )

    def with_rank(self, rank: int) -> Worker | None:
        """Return the worker that has a rank now."""
        worker = self.workers[self.members[rank]] if 0 <= rank < len(self.members) else None
        return worker if worker is not None and worker.state is WorkerState.PLACED else None

    def rank_of(self, host: str, process: str | None) -> int | None:
        """Return the rank that a host's process has now; None for one without."""
        name, _, slot = (process or "").partition(" ")
        if host not in self.hosts or name != "worker" or not slot.isdecimal():
            return None
        worker = self.hosts[host].workers.get(int(slot))
        return worker.rank if worker is not None else None

    def to_list(self) -> list[dict[str, Any]]:
        """Return the hosts, as they are shown: name, state, ranks."""
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
