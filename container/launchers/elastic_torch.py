"""Plan the *elastic_torch* launcher: ranks that get torchrun's variables and are restarted whenever hosts join or
leave.

The plan shows the ranks that a job starts with. The supervisor plans the ranks of each later membership with the same
function.
"""

from __future__ import annotations

from container.contract.environment import Environment
from container.contract.membership import Membership
from container.contract.plan import Plan, rank_processes
from container.contract.strategies import ElasticTorchDistributed
from container.launchers import torch_distributed
from container.launchers.elastic import WORKER

#: Number of ports per host. Successive memberships use them in turn, so that no rank connects to the store of an
#: earlier membership.
_PORTS = 4


def ports_per_host(strategy: ElasticTorchDistributed) -> int:
    """Return the number of ports that a host needs.

    The ports are used for PyTorch's store if rank 0 runs on the host.
    """
    return _PORTS


def plan(environment: Environment, membership: Membership, command: tuple[str, ...]) -> Plan:
    """Plan the ranks of a membership.

    Args:
        environment: The description of the job on one of its hosts.
        membership: The hosts and their slots.
        command: The user's entry point.
    """
    strategy = environment.strategy
    assert isinstance(strategy, ElasticTorchDistributed)
    variables = torch_distributed.variables(environment, membership, max_restarts=strategy.max_restarts)
    processes = rank_processes(membership, command, variables, name=WORKER)
    return Plan.of(environment, membership, processes, variables=defaults(environment))


def defaults(environment: Environment) -> dict[str, str]:
    """Return default variables for all ranks of a host. Variables that the user sets override the defaults.

    Args:
        environment: The description of the job on the host. Hosts that join later are not included.
    """
    return torch_distributed.defaults(environment, alone=False)
