"""Who there is in an elastic job: hosts and their workers, as the supervisor knows them.

A host's life: ``starting`` (its toolkit comes up), ``ready``, ``leaving`` (it was told to), ``gone``. A worker's:
``preparing`` (it imports), ``ready`` (it waits for its place), ``placed``, ``ended``.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable
from typing import Any, Protocol

from container.contract import elastic as messages
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
    ENDED = "ended"


@dataclasses.dataclass
class Host:
    """A host, as far as the supervisor knows."""

    name: str
    state: HostState = HostState.STARTING
    workers: dict[int, Worker] = dataclasses.field(default_factory=dict)  # the last one of each slot
    counts: dict[int, int] = dataclasses.field(default_factory=dict)
    slots: int = 1
    excluded_until: float = 0.0
    replace: bool = True  # whether another host is started if it is lost
    spare: bool = False  # whether it is kept ready, without taking part


@dataclasses.dataclass
class Worker:
    """A worker, as far as the supervisor knows."""

    name: str
    host: str
    slot: int
    state: WorkerState = WorkerState.PREPARING
    rank: int | None = None
    ended_with: int | None = None


class Job(Protocol):
    """What the controller needs of the supervisor."""

    def event(self, kind: str, **data: Any) -> None:
        """Put an event into the record."""

    def say(self, text: str) -> None:
        """Put a line into the log."""

    def fail_job(self, failure: Failure) -> None:
        """The job cannot go on."""

    def preempt(self, host: str, notice_s: float) -> None:
        """The host that goes has all that train: they save within the notice, and another attempt follows."""

    def await_hosts(self) -> list[str]:
        """Too few are left: if hosts were taken for a time, end the attempt, and let another one follow with them.

        Returns:
            These hosts; none if there are none, and nothing is ended.
        """

    def note_hosts(self, hosts: list[dict[str, Any]]) -> None:
        """Keep the membership with the status."""


def listed(hosts: Iterable[Host], workers: Iterable[Worker]) -> list[dict[str, Any]]:
    """The hosts, as they are shown: name, state, ranks."""
    workers = list(workers)
    return [
        {
            "name": host.name,
            "state": "spare" if host.spare and host.state is not HostState.GONE else host.state.value,
            "ranks": sorted(w.rank for w in workers if w.host == host.name and w.rank is not None),
        }
        for host in hosts
    ]


def changes(joined: list[str], left: list[str]) -> str:
    """Whose workers have joined and left, in words."""

    def hosts(workers: list[str]) -> str:
        return ", ".join(dict.fromkeys(messages.split_worker(name)[0] for name in workers))

    parts = [f"joined: {hosts(joined)}"] * bool(joined) + [f"left: {hosts(left)}"] * bool(left)
    return f" ({'; '.join(parts)})" if parts else ""
