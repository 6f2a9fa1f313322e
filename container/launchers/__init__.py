"""Plan which processes each strategy starts. Pure functions compute a plan from a host's environment and the hosts of
the cluster (the membership).

A launcher is a module with a function ``plan(environment, membership, command) -> Plan``. To add a launcher, add a file
and a line in :data:`LAUNCHERS`. A launcher only makes the plan. The toolkit, which is fleetfit's process on each host,
starts the planned processes with the launcher's runtime.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping

from container.contract.environment import STRING_LIMIT, Environment
from container.contract.frozen import dataclass
from container.contract.membership import Membership
from container.contract.plan import Plan
from container.contract.strategies import Distribution


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """The facts about a launcher: which module plans its jobs, and how its jobs are run.

    Attributes:
        module: The name of the module with the launcher's ``plan``.
        runtime: The class that runs a host's processes, as ``module:class``. See
            :class:`container.toolkit.runtime.Runtime`.
        membership_changes: Whether hosts join and leave while the job runs. If True, the supervisor (the process that
            owns the job) decides the membership. If False, the coordinator on algo-1 decides.
        own_sessions: Whether the processes of each host get their own session (setsid) when several hosts share a
            machine. Linux divides the processor time among sessions. Use True for ranks that sleep while they wait.
            Use False for ranks that poll while they wait, such as MPI's, because such a rank can yield the processor
            only to ranks of its own session.
        connects: Whether the processes connect to processes on other hosts, in addition to the connections between the
            toolkits.
        placed_by_script: Whether a worker gets its rank when its script requests the rank. Otherwise the worker gets
            the rank at its start.
        runs_horovod: Whether scripts may use Horovod with the launcher.
    """

    module: str
    runtime: str = "container.toolkit.host:HostRuntime"
    membership_changes: bool = False
    own_sessions: bool = False
    connects: bool = True
    placed_by_script: bool = False
    runs_horovod: bool = False


#: The launchers by name.
LAUNCHERS = {
    "script": Launcher(module="container.launchers.script", connects=False),
    "mpi": Launcher(module="container.launchers.mpi", runs_horovod=True),
    "parameter_server": Launcher(module="container.launchers.parameter_server"),
    "collective": Launcher(module="container.launchers.collective"),
    "mirrored": Launcher(module="container.launchers.mirrored"),
    "torch_distributed": Launcher(module="container.launchers.torch_distributed"),
    "elastic": Launcher(
        module="container.launchers.elastic",
        runtime="container.toolkit.elastic.host:ElasticRuntime",
        membership_changes=True,
        own_sessions=True,
        placed_by_script=True,
        runs_horovod=True,
    ),
    "elastic_torch": Launcher(
        module="container.launchers.elastic_torch",
        runtime="container.toolkit.elastic.restarting:RestartingRuntime",
        membership_changes=True,
    ),
}


class LaunchError(Exception):
    """Raised if the processes of a strategy cannot be started. The message names the cause and the remedy."""


def launcher_of(strategy: Distribution | None) -> str:
    """Return the name of the launcher that starts a strategy. Return ``script`` if there is no strategy."""
    return strategy.launcher if strategy is not None else "script"


def of(strategy: Distribution | None) -> Launcher:
    """Return the launcher that starts a strategy."""
    return LAUNCHERS[launcher_of(strategy)]


def ports_per_host(strategy: Distribution | None) -> int:
    """Return the number of ports that must be reserved on each host. They are for servers of the strategy that cannot
    choose a free port themselves.
    """
    module = importlib.import_module(of(strategy).module)
    return int(module.ports_per_host(strategy)) if hasattr(module, "ports_per_host") else 0


def ranks_variables(environment: Environment, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that mpirun, or another starter of ranks, changes for the ranks of a host.

    The result has the new values, and only the changes that fleetfit can compute in advance.

    Args:
        environment: The description of the job on one of its hosts.
        variables: The variables of all processes of the host.
    """
    module = importlib.import_module(of(environment.strategy).module)
    found: dict[str, str] = {}
    if hasattr(module, "ranks_variables"):
        found = module.ranks_variables(environment, variables)
    return found


def defaults(environment: Environment) -> dict[str, str]:
    """Return a strategy's default variables for all processes of a host. Variables that the user sets override the
    defaults.
    """
    module = importlib.import_module(of(environment.strategy).module)
    found: dict[str, str] = module.defaults(environment) if hasattr(module, "defaults") else {}
    return found


def check_tf_config(text: str, membership: Membership) -> None:
    """Raise an error if a TF_CONFIG is longer than Linux allows for a variable.

    Args:
        text: The longest TF_CONFIG of the job's processes.
        membership: The hosts and their slots, for the error message.

    Raises:
        LaunchError: the text is longer than a variable may be.
    """
    if len("TF_CONFIG=") + len(text.encode()) > STRING_LIMIT:
        raise LaunchError(
            f"TF_CONFIG lists every process. For {len(membership.hosts):,} hosts × {membership.hosts[0].slots} "
            f"processes it would have {len(text):,} characters; Linux passes at most {STRING_LIMIT:,} in one variable. "
            "Use fewer hosts or fewer processes per host, or MPI(), which needs no such variable."
        )


def membership_of(environment: Environment) -> Membership:
    """Return the cluster that a job's configuration files describe. The cluster contains all hosts, with equal numbers
    of ranks.
    """
    strategy = environment.strategy
    members = Membership.of(environment.hosts, slots=strategy.ranks_per_host if strategy is not None else 1)
    if not environment.addresses:
        return members
    hosts = (dataclasses.replace(host, address=environment.addresses.get(host.name)) for host in members.hosts)
    return dataclasses.replace(members, hosts=tuple(hosts))


def plan_job(
    environment: Environment,
    command: tuple[str, ...],
    membership: Membership | None = None,
) -> Plan:
    """Plan a whole job from the facts that one of its hosts knows.

    Args:
        environment: The description of the job on one of its hosts.
        command: The user's entry point as an argv list.
        membership: The hosts of the cluster. If None, the hosts in the configuration files.

    Raises:
        LaunchError: the strategy cannot be started here.
    """
    membership = membership or membership_of(environment)
    plan: Plan = importlib.import_module(of(environment.strategy).module).plan(environment, membership, command)
    return plan
