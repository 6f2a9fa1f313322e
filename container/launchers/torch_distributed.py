"""Plan the *torch_distributed* launcher: every rank runs the script with the variables that torchrun sets for its
workers.

Source of the variables: PyTorch, ``torch/distributed/elastic/agent/server/local_elastic_agent.py``,
``LocalElasticAgent._start_workers``. There are two differences from torchrun. First, rank 0 hosts the store for the
rendezvous, as without torchrun, because our launchers do not import torch. ``TORCHELASTIC_USE_AGENT_STORE`` is
therefore False. Second, ``TORCHELASTIC_ERROR_FILE`` is not set, because each rank reports its exceptions to the
toolkit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from container.contract.environment import Environment
from container.contract.membership import ClusterHost, Membership
from container.contract.plan import Plan, rank_processes
from container.contract.strategies import TorchDistributed

#: The port of PyTorch's store, as torchrun chooses it by default.
STORE_PORT = 29500


def ports_per_host(strategy: TorchDistributed) -> int:
    """Return the number of ports that a host needs. The port is used for PyTorch's store if rank 0 runs on the host."""
    return 1


def plan(environment: Environment, membership: Membership, command: tuple[str, ...]) -> Plan:
    """Plan a cluster in which all ranks have the same role.

    Args:
        environment: The description of the job on one of its hosts.
        membership: The hosts and their slots.
        command: The user's entry point.
    """
    assert isinstance(environment.strategy, TorchDistributed)
    processes = rank_processes(membership, command, variables(environment, membership))
    return Plan.of(environment, membership, processes, variables=defaults(environment))


def variables(
    environment: Environment, membership: Membership, *, max_restarts: int = 0
) -> Callable[[int], Mapping[str, str]]:
    """Return a function that returns torchrun's variables for a given rank of a membership.

    Args:
        environment: The description of the job on one of its hosts.
        membership: The hosts and their slots.
        max_restarts: The maximum number of restarts of the ranks.
    """
    places = {rank: (host, local_rank) for rank, host, local_rank in membership.ranks()}

    def of(rank: int) -> Mapping[str, str]:
        host, local_rank = places[rank]
        return rank_variables(
            membership,
            host,
            rank,
            local_rank,
            run_id=environment.job_name,
            restarts=environment.attempt,
            max_restarts=max_restarts,
        )

    return of


def rank_variables(
    membership: Membership,
    host: ClusterHost,
    rank: int,
    local_rank: int,
    *,
    run_id: str,
    restarts: int,
    max_restarts: int = 0,
) -> dict[str, str]:
    """Return torchrun's variables for one rank.

    Args:
        membership: The hosts and their slots.
        host: The host of the rank.
        rank: The global rank.
        local_rank: The rank on its host.
        run_id: The job's name.
        restarts: The number of restarts of the ranks so far.
        max_restarts: The maximum number of restarts of the ranks.
    """
    master = membership.master
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(membership.size),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(host.slots),
        "GROUP_RANK": str(membership.names.index(host.name)),
        "GROUP_WORLD_SIZE": str(len(membership.hosts)),
        "ROLE_NAME": "default",
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(membership.size),
        "MASTER_ADDR": master.reach,
        "MASTER_PORT": str(master.ports[0] if master.ports else STORE_PORT),
        "TORCHELASTIC_RUN_ID": run_id or "none",
        "TORCHELASTIC_RESTART_COUNT": str(restarts),
        "TORCHELASTIC_MAX_RESTARTS": str(max_restarts),
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


def defaults(environment: Environment, *, alone: bool | None = None) -> dict[str, str]:
    """Return default variables for all ranks of a host. Variables that the user sets override the defaults.

    Args:
        environment: The description of the job on the host.
        alone: Whether this is the only host of the job. If None, the job's list of hosts decides.
    """
    machine, hosts = environment.machine, len(environment.hosts)
    slots = environment.strategy.ranks_per_host if environment.strategy is not None else 1
    ranks = slots * (hosts if machine.shared else machine.hosts_here)
    values = {"OMP_NUM_THREADS": str(max(1, machine.cpus // ranks)), "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
    if machine.shared or not (hosts < 2 if alone is None else alone):
        # Otherwise Gloo would resolve the machine's own name, and use the interface of the resulting address.
        interface = environment.network_interface
        values |= {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}
    return values
