"""Plan the *elastic* launcher: the script runs in each slot of each host, and hosts and ranks change during the job.

The plan shows the workers that a job starts with. At the workers' rendezvous, Horovod's driver sends a rank to each
worker (:mod:`container.toolkit.elastic`).
"""

from __future__ import annotations

from container.contract.environment import Environment
from container.contract.membership import Membership
from container.contract.plan import Plan, rank_processes
from container.contract.strategies import ElasticHorovod

#: The name of a worker's process. It does not contain the rank, because the rank changes with each membership.
WORKER = "worker {local_rank}"


def plan(environment: Environment, membership: Membership, command: tuple[str, ...]) -> Plan:
    """Plan the workers of a membership.

    Args:
        environment: The description of the job on one of its hosts.
        membership: The hosts and their slots.
        command: The user's entry point.
    """
    assert isinstance(environment.strategy, ElasticHorovod)
    processes = rank_processes(
        membership,
        command,
        lambda rank: {
            "HOROVOD_ELASTIC": "1",
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            "HOROVOD_RANK": str(rank),
            "HOROVOD_SIZE": str(membership.size),
        },
        name=WORKER,
    )
    return Plan.of(environment, membership, processes)
