"""Describe the hosts of the cluster in each generation. A generation is the time between two changes of the hosts."""

from __future__ import annotations

import functools
import re

from container.contract.frozen import dataclass


@dataclass(frozen=True, kw_only=True)
class ClusterHost:
    """One host of the cluster.

    Attributes:
        name: The host's name in the job: ``algo-1`` to ``algo-N``. A name is not used again for another host of the
            job.
        slots: Number of ranks that run on the host.
        address: The address at which other hosts connect to this host: an IP address, or a host name that resolves. If
            None, ``name`` is used.
        ports: The ports that are reserved for the host, if hosts share a machine. Empty if the host uses fixed ports.
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
        """Return the address that other hosts connect to."""
        return self.address or self.name


@dataclass(frozen=True, kw_only=True)
class Membership:
    """The hosts of a cluster in one generation, in rank order."""

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
        """Return the hosts' names in rank order."""
        return tuple(host.name for host in self.hosts)

    @property
    def master(self) -> ClusterHost:
        """Return the first host. This host coordinates the other hosts."""
        return self.hosts[0]

    @functools.cached_property
    def size(self) -> int:
        """Return the number of ranks."""
        return sum(host.slots for host in self.hosts)

    def ranks(self) -> list[tuple[int, ClusterHost, int]]:
        """Return every rank as ``(rank, host, local rank)``. The ranks of one host are consecutive (mpirun's "by
        slot").
        """
        placed = [(host, local_rank) for host in self.hosts for local_rank in range(host.slots)]
        return [(rank, host, local_rank) for rank, (host, local_rank) in enumerate(placed)]

    @classmethod
    def of(cls, names: list[str] | tuple[str, ...], *, slots: int = 1, generation: int = 0) -> Membership:
        """Create a membership of hosts with the same number of slots, in natural order (``algo-2`` before
        ``algo-10``).
        """
        ordered = sorted(names, key=natural_key)
        return cls(hosts=tuple(ClusterHost(name=name, slots=slots) for name in ordered), generation=generation)


def natural_key(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key that compares the numbers in names by value, so that ``algo-2`` precedes ``algo-10``."""
    parts = re.split(r"(\d+)", name)
    return tuple((1, int(part), "") if part.isdecimal() else (0, 0, part) for part in parts)
