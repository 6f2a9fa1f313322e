"""What would be started, as data."""

from __future__ import annotations

import dataclasses
import enum
import shlex
from collections.abc import Callable, Iterable, Mapping
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
        """
        planned = list(processes)
        return cls(
            strategy=environment.strategy.name if environment.strategy is not None else "none",
            membership=membership,
            hosts=tuple(
                HostPlan(
                    name=name,
                    environment={**environment.for_host(name).to_env_vars(), **(variables or {})},
                    processes=tuple(process for process in planned if process.host == name),
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
) -> list[ProcessPlan]:
    """Plan the process of each rank, in rank order.

    Args:
        membership: The hosts and their slots.
        argv: The user's entry point.
        variables: What a rank has in its environment beside its host's.
        started_by: Who starts them.
    """
    return [
        ProcessPlan(
            name=f"rank {rank}",
            host=host.name,
            role=Role.RANK,
            argv=argv,
            environment=variables(rank),
            rank=rank,
            local_rank=local_rank,
            started_by=started_by,
        )
        for rank, host, local_rank in membership.ranks()
    ]


def shell_line(argv: tuple[str, ...] | list[str]) -> str:
    """Show an argv list as a line that a POSIX shell would read back as that list (for people; nothing runs it)."""
    return shlex.join(argv)
