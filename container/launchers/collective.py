"""Plan the *collective* launcher: every rank runs the script, and gets a TF_CONFIG (``MultiWorkerMirroredStrategy``).

The port and the format of TF_CONFIG are the same as in the function ``_build_tf_config_for_mwms`` (``training.py``) of
sagemaker-tensorflow-training-toolkit. That toolkit supports only one rank per host. Here, each additional rank of a
host uses the next port, unless the host has reported its own ports.
"""

from __future__ import annotations

import json

from container.contract.environment import Environment
from container.contract.membership import Membership
from container.contract.plan import Plan, rank_processes
from container.contract.strategies import CollectiveAllReduce
from container.launchers import check_tf_config

#: The port of a host's first rank, as in SageMaker's toolkit.
WORKER_PORT = 8890


def ports_per_host(strategy: CollectiveAllReduce) -> int:
    """Return the number of ports that a host needs. Each rank needs one port."""
    return strategy.processes_per_host


def plan(environment: Environment, membership: Membership, command: tuple[str, ...]) -> Plan:
    """Plan a cluster in which all workers have the same role.

    Args:
        environment: The description of the job on one of its hosts.
        membership: The hosts and their slots.
        command: The user's entry point.

    Raises:
        LaunchError: there are too many ranks for TF_CONFIG, whose size is limited.
    """
    assert isinstance(environment.strategy, CollectiveAllReduce)
    workers = worker_addresses(membership)
    check_tf_config(_tf_config(workers, len(workers) - 1), membership)
    processes = rank_processes(membership, command, lambda rank: {"TF_CONFIG": _tf_config(workers, rank)})
    return Plan.of(environment, membership, processes)


def worker_addresses(membership: Membership) -> list[str]:
    """Return the address of each rank (host and port), in the order of the ranks."""
    return [
        f"{host.reach}:{host.ports[local_rank] if host.ports else WORKER_PORT + local_rank}"
        for _, host, local_rank in membership.ranks()
    ]


def _tf_config(workers: list[str], rank: int) -> str:
    return json.dumps(
        {"cluster": {"worker": workers}, "environment": "cloud", "task": {"type": "worker", "index": rank}}
    )
