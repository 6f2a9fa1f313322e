"""Who is in the cluster, numbered by generation."""

from __future__ import annotations

import dataclasses
import functools
import re


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClusterHost:
    """One host of the cluster.

    Attributes:
        name: The host's name in the job, ``algo-1`` ... ``algo-N``; never reused within a job.
        slots: How many ranks it takes.
        address: Where the other hosts reach it: a name that resolves, or an IP address. Default: the name.
        ports: Ports that are reserved for it, where hosts share a machine; elsewhere they are fixed.
    """

    name: str
    slots: int = 1
    address: str | None = None
    ports: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.slots < 1:
            raise ValueError(f"host {self.name!r}: slots must be at least 1, got {self.slots!r}.")

    @property
    def reach(self) -> str:
        """The address that other hosts connect to."""
        return self.address or self.name


@dataclasses.dataclass(frozen=True, kw_only=True)
class Membership:
    """The hosts of a cluster at one generation, in rank order."""

    hosts: tuple[ClusterHost, ...]
    generation: int = 0

    def __post_init__(self) -> None:
        if not self.hosts:
            raise ValueError("a cluster needs at least one host.")
        names = [host.name for host in self.hosts]
        if len(set(names)) != len(names):
            raise ValueError(f"host names must be unique, got {names}.")

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """The hosts' names in rank order."""
        return tuple(host.name for host in self.hosts)

    @property
    def master(self) -> ClusterHost:
        """The host that coordinates: the first one."""
        return self.hosts[0]

    @functools.cached_property
    def size(self) -> int:
        """The number of ranks."""
        return sum(host.slots for host in self.hosts)

    def ranks(self) -> list[tuple[int, ClusterHost, int]]:
        """Yield every rank as ``(rank, host, local rank)``, host by host ("by slot")."""
        placed = [(host, local_rank) for host in self.hosts for local_rank in range(host.slots)]
        return [(rank, host, local_rank) for rank, (host, local_rank) in enumerate(placed)]

    @classmethod
    def of(cls, names: list[str] | tuple[str, ...], *, slots: int = 1, generation: int = 0) -> Membership:
        """Make a membership of equal hosts, in natural order (``algo-2`` before ``algo-10``)."""
        ordered = sorted(names, key=natural_key)
        return cls(hosts=tuple(ClusterHost(name=name, slots=slots) for name in ordered), generation=generation)


def natural_key(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key that orders numbers in names by value: ``algo-2`` before ``algo-10``."""
    parts = re.split(r"(\d+)", name)
    return tuple((1, int(part), "") if part.isdecimal() else (0, 0, part) for part in parts)
