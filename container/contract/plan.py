"""Describe, as data, the processes that a job starts on each host."""

from __future__ import annotations

import dataclasses
import enum
import functools
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from container.contract.frozen import dataclass
from container.contract.membership import Membership

if TYPE_CHECKING:
    from container.contract.environment import Environment


class Role(enum.Enum):
    """The purpose of a process in the job."""

    RANK = "rank"  # runs the user's script and counts as a worker
    SERVER = "server"  # serves the ranks (a parameter server); is stopped when the ranks have ended
    LAUNCHER = "launcher"  # starts ranks: mpirun


class StartedBy(enum.Enum):
    """The program that starts a process on its host."""

    TOOLKIT = "toolkit"
    MPIRUN = "mpirun"


class Deferred(Mapping[str, str]):
    """A mapping of environment variables that is computed at the first access.

    The variables of each host contain the names of all hosts, and the variables of each TensorFlow rank contain the
    addresses of all ranks. Therefore the memory for the variables of all hosts would grow with the square of the number
    of hosts. But the toolkit, the process that starts a host's ranks, reads only the variables of its own host.

    Args:
        make: Computes the variables.
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


@dataclass(frozen=True, kw_only=True)
class ProcessPlan:
    """One process of the cluster.

    Attributes:
        name: The name of the process in logs and error messages, such as ``rank 0``, ``worker``, ``ps`` or ``mpirun``.
        host: The host that the process runs on.
        role: The purpose of the process.
        argv: The command, without the rank wrapper that starts the command (see :mod:`container.toolkit.rank`).
        environment: The environment variables of the process in addition to those of its host
            (:attr:`HostPlan.environment`).
        rank: The global rank, from 0. None for servers and launchers.
        local_rank: The rank's number on its host, from 0. None for servers and launchers.
        started_by: The program that starts the process.
    """

    name: str
    host: str
    role: Role
    argv: tuple[str, ...]
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    rank: int | None = None
    local_rank: int | None = None
    started_by: StartedBy = StartedBy.TOOLKIT


@dataclass(frozen=True, kw_only=True)
class HostPlan:
    """The plan of one host: the processes on the host, and the environment variables that all these processes get."""

    name: str
    environment: Mapping[str, str]
    processes: tuple[ProcessPlan, ...]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The plan of the whole cluster.

    Attributes:
        strategy: Name of the distribution strategy, or ``none``.
        membership: The hosts of the cluster.
        hosts: The plan of each host, in rank order.
        has_servers: Whether ranks may also be parameter servers. If False, the job is complete when every rank has
            exited. If True, the job is complete when every rank has exited or is only a parameter server. The remaining
            servers are then stopped.
        warnings: Warnings to show to the user before the job starts.
        notes: Remarks about the execution, which are shown together with the plan.
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
        """Create a plan of processes. The processes of a host keep the given order.

        Args:
            environment: The description of the job, from which each host's environment variables are computed.
            membership: The hosts of the cluster.
            processes: The processes of all hosts.
            variables: Additional environment variables for every host.
            has_servers: Whether ranks may also be parameter servers, as for :class:`Plan`.
            warnings: Warnings to show to the user before the job starts.
            notes: Remarks about the execution.

        Raises:
            ValueError: a value is too long for a process's environment.
        """
        planned: dict[str, list[ProcessPlan]] = {name: [] for name in membership.names}
        for process in processes:
            planned[process.host].append(process)

        def variables_of(name: str) -> dict[str, str]:
            return {**environment.for_host(name).to_env_vars(), **(variables or {})}

        # A host's variables are computed at the first access. Only those of the host with the longest name are computed
        # now, so that values that are too long raise an error at once.
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
        """Return the plan of one host."""
        return next(host for host in self.hosts if host.name == name)

    @property
    def processes(self) -> tuple[ProcessPlan, ...]:
        """Return all processes, host by host."""
        return tuple(process for host in self.hosts for process in host.processes)

    @property
    def ranks(self) -> tuple[ProcessPlan, ...]:
        """Return the processes that run the user's script, in rank order."""
        ranks = [process for process in self.processes if process.role is Role.RANK]
        return tuple(sorted(ranks, key=lambda process: process.rank if process.rank is not None else -1))

    @property
    def mpirun(self) -> tuple[str, ...] | None:
        """Return the mpirun command line. Return None if the strategy does not use mpirun."""
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
        membership: The hosts and the number of slots of each host.
        argv: The command that runs the user's entry point.
        variables: Returns the environment variables of a rank in addition to those of its host.
        started_by: The program that starts the processes.
        name: Format of a process's name, with the fields ``rank`` and ``local_rank``.
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
    """Return an argv list as the line that a user would type in a POSIX shell. The line is only shown, and never
    executed.
    """
    return shlex.join(argv)
