"""The *elastic* launcher: the script in each slot of each host; who is there and what their ranks are changes.

The plan shows the workers that a job starts with. Where they meet, Horovod's driver tells each of them when it gets its
place (:mod:`container.toolkit.elastic`).
"""

from __future__ import annotations

from container.contract.environment import Environment
from container.contract.membership import Membership
from container.contract.plan import Plan, rank_processes
from container.contract.strategies import ElasticHorovod

#: What a worker is called: its rank is another one in each membership.
WORKER = "worker {local_rank}"


def plan(environment: Environment, membership: Membership, command: tuple[str, ...]) -> Plan:
    """Plan the workers of a membership.

    Args:
        environment: The job as one host sees it.
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
