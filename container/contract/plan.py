"""What would be started, as data."""

from __future__ import annotations

import dataclasses
import enum
import functools
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from container.contract.membership import Membership

if TYPE_CHECKING:
    from container.contract.environment import Environment


class Role(enum.Enum):
    """What a process is for."""

    RANK = "rank"  # runs the user's script and counts as a worker
    SERVER = "server"  # serves the ranks (a parameter server) and is ended when they are done
    LAUNCHER = "launcher"  # starts ranks: mpirun


class StartedBy(enum.Enum):
    """Who starts a process on its host."""

    TOOLKIT = "toolkit"
    MPIRUN = "mpirun"


class Deferred(Mapping[str, str]):
    """Variables that are made when they are first looked at.

    Those of a host name all hosts, and those of a TensorFlow rank all ranks: together they grow with the square of the
    cluster, while a toolkit looks at its own host's alone, and a summary at those of a few.

    Args:
        make: Makes them.
    """

    def __init__(self, make: Callable[[], Mapping[str, str]]) -> None:
        self._make = make
        self._made: Mapping[str, str] | None = None

    def _variables(self) -> Mapping[str, str]:
        if self._made is None:
            self._made = self._make()
        return self._made

    def __getitem__(self, name: str) -> str:
        return self._variables()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._variables())

    def __len__(self) -> int:
        return len(self._variables())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'…' if self._made is None else dict(self._made)})"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProcessPlan:
    """One process of the cluster.

    Attributes:
        name: How logs and errors call it: ``rank 0``, ``worker``, ``ps``, ``mpirun``.
        host: The host it runs on.
        role: What it is for.
        argv: The command, without the rank wrapper.
        environment: Variables on top of the host's own (:attr:`HostPlan.environment`).
        rank: The global rank, from 0; None for servers and launchers.
        local_rank: The rank on its host, from 0.
        started_by: Who starts it.
    """

    name: str
    host: str
    role: Role
    argv: tuple[str, ...]
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    rank: int | None = None
    local_rank: int | None = None
    started_by: StartedBy = StartedBy.TOOLKIT


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostPlan:
    """One host: the environment that all its processes share, and the processes."""

    name: str
    environment: Mapping[str, str]
    processes: tuple[ProcessPlan, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """The whole cluster.

    Attributes:
        strategy: Name of the distribution strategy, ``none`` without one.
        membership: Who is in it.
        hosts: What each host runs, in rank order.
        has_servers: Whether ranks may be servers too: the job is over when every rank has ended, or does nothing but
            serve, which is then ended; otherwise it is over when every rank has ended.
        warnings: What the user should know before it runs.
        notes: What the plan shows of how it runs.
    """

    strategy: str
    membership: Membership
    hosts: tuple[HostPlan, ...]
    has_servers: bool = False
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        environment: Environment,
        membership: Membership,
        processes: Iterable[ProcessPlan],
        *,
        variables: Mapping[str, str] | None = None,
        has_servers: bool = False,
        warnings: tuple[str, ...] = (),
        notes: tuple[str, ...] = (),
    ) -> Plan:
        """Plan these processes, each on its host and in the order given.

        Args:
            environment: Makes each host's own.
            membership: Who is in the cluster.
            processes: All of them.
            variables: What every host has beside its own.
            has_servers: See above, as the rest.
            warnings: Likewise.
            notes: Likewise.

        Raises:
            ValueError: a value is too long for a process's environment.
        """
        planned: dict[str, list[ProcessPlan]] = {name: [] for name in membership.names}
        for process in processes:
            planned[process.host].append(process)

        def variables_of(name: str) -> dict[str, str]:
            return {**environment.for_host(name).to_env_vars(), **(variables or {})}

        # All are made when they are looked at, but for the longest: what is too long is refused now.
        longest = max(membership.names, key=len)
        made = {longest: variables_of(longest)}
        return cls(
            strategy=environment.strategy.name if environment.strategy is not None else "none",
            membership=membership,
            hosts=tuple(
                HostPlan(
                    name=name,
                    environment=made.get(name) or Deferred(functools.partial(variables_of, name)),
                    processes=tuple(planned[name]),
                )
                for name in membership.names
            ),
            has_servers=has_servers,
            warnings=warnings,
            notes=notes,
        )

    def host(self, name: str) -> HostPlan:
        """Return one host's part."""
        return next(host for host in self.hosts if host.name == name)

    @property
    def processes(self) -> tuple[ProcessPlan, ...]:
        """Every process, host by host."""
        return tuple(process for host in self.hosts for process in host.processes)

    @property
    def ranks(self) -> tuple[ProcessPlan, ...]:
        """The processes that run the user's script, in rank order."""
        ranks = [process for process in self.processes if process.role is Role.RANK]
        return tuple(sorted(ranks, key=lambda process: process.rank if process.rank is not None else -1))

    @property
    def mpirun(self) -> tuple[str, ...] | None:
        """The mpirun command line, or None for a strategy without one."""
        return next((p.argv for p in self.processes if p.role is Role.LAUNCHER), None)


def rank_processes(
    membership: Membership,
    argv: tuple[str, ...],
    variables: Callable[[int], Mapping[str, str]] = lambda rank: {},
    *,
    started_by: StartedBy = StartedBy.TOOLKIT,
    name: str = "rank {rank}",
) -> list[ProcessPlan]:
    """Plan the process of each rank, in rank order.

    Args:
        membership: The hosts and their slots.
        argv: The user's entry point.
        variables: What a rank has in its environment beside its host's.
        started_by: Who starts them.
        name: What one is called, of its ``rank`` and its ``local_rank``.
    """
    return [
        ProcessPlan(
            name=name.format(rank=rank, local_rank=local_rank),
            host=host.name,
            role=Role.RANK,
            argv=argv,
            environment=Deferred(functools.partial(variables, rank)),
            rank=rank,
            local_rank=local_rank,
            started_by=started_by,
        )
        for rank, host, local_rank in membership.ranks()
    ]


def shell_line(argv: tuple[str, ...] | list[str]) -> str:
    """Show an argv list as a line that a POSIX shell would read back as that list (for people; nothing runs it)."""
    return shlex.join(argv)
