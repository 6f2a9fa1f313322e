"""Plan the *mirrored* launcher: one process on one host trains on all of the host's devices (``MirroredStrategy``)."""

from __future__ import annotations

from container.contract.environment import Environment
from container.contract.errors import ConfigurationError
from container.contract.membership import Membership
from container.contract.plan import Plan, rank_processes
from container.contract.strategies import Mirrored


def plan(environment: Environment, membership: Membership, command: tuple[str, ...]) -> Plan:
    """Plan one process.

    Args:
        environment: The description of the job on its host.
        membership: The job's only host.
        command: The user's entry point.

    Raises:
        ConfigurationError: there is more than one host, or the host has fewer GPUs than the strategy needs.
    """
    strategy = environment.strategy
    assert isinstance(strategy, Mirrored)
    if len(membership.hosts) > 1:
        raise ConfigurationError(strategy.one_host_only(len(membership.hosts)))
    gpus = environment.machine.gpus
    if strategy.devices is not None and 0 < gpus < strategy.devices:
        raise ConfigurationError(f"Mirrored(devices={strategy.devices}) is more than the {gpus} GPUs of the host.")
    return Plan.of(environment, membership, rank_processes(membership, command))
