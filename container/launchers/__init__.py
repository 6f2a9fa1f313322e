"""How each strategy is started: pure functions from a host's environment and a membership to a plan.

A launcher is a module with ``plan(environment, membership, command) -> Plan``; adding one is one file and one line in
:data:`LAUNCHERS`. The toolkit (:mod:`container.toolkit.host`) starts what a plan says; launchers start nothing
themselves.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable

from container.contract.environment import Environment
from container.contract.membership import Membership
from container.contract.names import unknown
from container.contract.plan import Plan
from container.contract.strategies import Distribution

#: Launcher name -> module.
LAUNCHERS = {
    "script": "container.launchers.script",
    "mpi": "container.launchers.mpi",
    "parameter_server": "container.launchers.parameter_server",
    "collective": "container.launchers.collective",
    "mirrored": "container.launchers.mirrored",
    "elastic": "container.launchers.elastic",
}

#: Launchers whose jobs cannot be run yet, with the reason.
_MISSING: dict[str, str] = {}

PlanFunction = Callable[[Environment, Membership, tuple[str, ...]], Plan]


class LaunchError(Exception):
    """A strategy cannot be started here; the message says what is missing and the remedy."""


def launcher_of(strategy: Distribution | None) -> str:
    """The name of the launcher that starts a strategy; ``script`` without one."""
    return strategy.launcher if strategy is not None else "script"


def runnable(name: str) -> bool:
    """Whether this version can run what the launcher plans."""
    return name in LAUNCHERS and name not in _MISSING


def load(name: str, *, to_show: bool = False) -> PlanFunction:
    """Return a launcher's ``plan``.

    Args:
        name: The launcher.
        to_show: Whether the plan will only be shown, which is possible before the jobs are.

    Raises:
        LaunchError: there is no such launcher (yet).
    """
    if name in _MISSING and not (to_show and name in LAUNCHERS):
        raise LaunchError(_MISSING[name] + ".")
    if name not in LAUNCHERS:
        raise LaunchError(unknown("launcher", name, LAUNCHERS))
    plan: PlanFunction = importlib.import_module(LAUNCHERS[name]).plan
    return plan


def ports_per_host(strategy: Distribution | None) -> int:
    """How many ports each host needs that servers of the strategy cannot choose themselves."""
    module = importlib.import_module(LAUNCHERS[launcher_of(strategy)])
    return int(module.ports_per_host(strategy)) if hasattr(module, "ports_per_host") else 0


def membership_of(environment: Environment) -> Membership:
    """The cluster that a job's configuration files describe: all hosts, equal numbers of ranks."""
    strategy = environment.strategy
    return Membership.of(environment.hosts, slots=strategy.ranks_per_host if strategy is not None else 1)


def plan_job(
    environment: Environment,
    command: tuple[str, ...],
    membership: Membership | None = None,
    *,
    to_show: bool = False,
) -> Plan:
    """Plan a whole job from what one of its hosts knows.

    Args:
        environment: The job as one host sees it.
        command: The user's entry point as an argv list.
        membership: Who is in the cluster; default: the hosts of the configuration files, at their names.
        to_show: See :func:`load`.

    Raises:
        LaunchError: the strategy cannot be started here.
    """
    membership = membership or membership_of(environment)
    return load(launcher_of(environment.strategy), to_show=to_show)(environment, membership, command)
