"""The *elastic_torch* launcher: torchrun's variables for ranks that start again whenever hosts come or go.

The plan shows the ranks that a job starts with. The supervisor, which has the membership, plans those of each later one
with the same function.
"""

from __future__ import annotations

from container.contract.environment import Environment
from container.contract.membership import Membership
from container.contract.plan import Plan, rank_processes
from container.contract.strategies import ElasticTorchDistributed
from container.launchers import torch_distributed
from container.launchers.elastic import WORKER

#: The ports of a host, used one after the other: a store is never taken for that of the membership before.
_PORTS = 4


def ports_per_host(strategy: ElasticTorchDistributed) -> int:
    """How many ports a host needs, for the store if rank 0 is there."""
    return _PORTS


def plan(environment: Environment, membership: Membership, command: tuple[str, ...]) -> Plan:
    """Plan the ranks of a membership.

    Args:
        environment: The job as one host sees it.
        membership: The hosts and their slots.
        command: The user's entry point.
    """
    strategy = environment.strategy
    assert isinstance(strategy, ElasticTorchDistributed)
    variables = torch_distributed.variables(environment, membership, max_restarts=strategy.max_restarts)
    processes = rank_processes(membership, command, variables, name=WORKER)
    return Plan.of(environment, membership, processes, variables=defaults(environment))


def defaults(environment: Environment) -> dict[str, str]:
    """Return variables of all ranks of a host, in whose place a user's own values are taken.

    Args:
        environment: The job as the host sees it, which knows none that come later.
    """
    return torch_distributed.defaults(environment, alone=False)
