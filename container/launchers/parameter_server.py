"""Plan the *parameter_server* launcher, which has two kinds of clusters. The option ``cluster_spec`` of
``ParameterServer`` selects the kind.

* ``coordinator``: the cluster of TensorFlow 2. Every host runs a ``ps`` process and a worker, and algo-1 also runs the
  chief. The script runs on the chief and on every worker. The chief schedules the training, and the workers execute it.
* ``sagemaker``: the cluster of SageMaker's TensorFlow container. The script runs once on each host, as ``master`` on
  algo-1 and as ``worker`` on every other host. Each host also runs a ``ps`` process. On a single host, the script runs
  alone, without a cluster.

If hosts share a machine, the processes use ports that are reserved when the job starts, instead of the fixed ports.

Source of ``sagemaker``: sagemaker-tensorflow-training-toolkit, ``training.py``, ``_build_tf_config_for_ps`` and
``train``.
"""

from __future__ import annotations

import functools
import json
import os
from typing import Any

from container.contract.environment import Environment
from container.contract.membership import Membership
from container.contract.plan import Deferred, Plan, ProcessPlan, Role
from container.contract.strategies import ParameterServer
from container.launchers import check_tf_config

#: The fixed ports of workers and servers are those of SageMaker's toolkit. That toolkit has no chief, so the chief gets
#: the next port.
WORKER_PORT = 2222
SERVER_PORT = 2223
CHIEF_PORT = 2224


def ports_per_host(strategy: ParameterServer) -> int:
    """Return the number of ports that a host needs. The worker, the server and the chief need one port each."""
    return 3


def plan(environment: Environment, membership: Membership, command: tuple[str, ...]) -> Plan:
    """Plan a cluster with parameter servers.

    Args:
        environment: The description of the job on one of its hosts.
        membership: The hosts.
        command: The user's entry point.

    Raises:
        LaunchError: there are too many hosts for TF_CONFIG, whose size is limited.
    """
    strategy = environment.strategy
    assert isinstance(strategy, ParameterServer)
    cluster = cluster_spec(membership, strategy)
    check_tf_config(_tf_config(cluster, "worker", len(membership.hosts)), membership)
    servers = [
        _server(environment, membership, cluster, index) for index in range(len(membership.hosts)) if "ps" in cluster
    ]
    workers = _workers(environment, membership, strategy, cluster, command)
    return Plan.of(
        environment,
        membership,
        [*workers, *servers],
        has_servers=bool(servers),
        notes=_notes(strategy, len(membership.hosts)),
    )


def cluster_spec(membership: Membership, strategy: ParameterServer) -> dict[str, list[str]]:
    """Return the ``cluster`` of TF_CONFIG: the addresses of the tasks of each type. Return an empty dict if the job has
    no cluster.
    """
    if not strategy.coordinated and len(membership.hosts) == 1:
        return {}
    ports = [host.ports or (WORKER_PORT, SERVER_PORT, CHIEF_PORT) for host in membership.hosts]
    reach = [host.reach for host in membership.hosts]
    workers = [f"{address}:{host_ports[0]}" for address, host_ports in zip(reach, ports, strict=True)]
    servers = [f"{address}:{host_ports[1]}" for address, host_ports in zip(reach, ports, strict=True)]
    if strategy.coordinated:
        return {"chief": [f"{reach[0]}:{ports[0][2]}"], "worker": workers, "ps": servers}
    return {"master": workers[:1], "ps": servers, "worker": workers[1:]}


def _notes(strategy: ParameterServer, hosts: int) -> tuple[str, ...]:
    if strategy.coordinated:
        return ()
    if hosts == 1:
        return ("With one host, SageMaker makes no cluster: the script runs alone, without TF_CONFIG and servers.",)
    return (
        "SageMaker's cluster: the script runs once on each host, as master on algo-1 and as worker elsewhere. A script "
        "with distributed.init() trains on the workers, and the master coordinates the workers. With "
        "ParameterServer(), algo-1 runs a worker too.",
    )


def _workers(
    environment: Environment,
    membership: Membership,
    strategy: ParameterServer,
    cluster: dict[str, list[str]],
    command: tuple[str, ...],
) -> list[ProcessPlan]:
    """Return the processes that count as ranks, in the order of the ranks. Rank 0 is the chief or the master."""
    names = membership.names
    if strategy.coordinated:
        tasks = [("chief", 0, names[0]), *(("worker", index, name) for index, name in enumerate(names))]
    else:
        tasks = [("master", 0, names[0]), *(("worker", index, name) for index, name in enumerate(names[1:]))]
    processes: list[ProcessPlan] = []
    for rank, (kind, index, host) in enumerate(tasks):
        runs_script = kind != "worker" or strategy.script_on == "all"
        processes.append(
            ProcessPlan(
                name=kind,
                host=host,
                role=Role.RANK if runs_script else Role.SERVER,
                argv=command if runs_script else servers_command(environment),
                environment=Deferred(functools.partial(_variables, cluster, kind, index)) if cluster else {},
                rank=rank if runs_script else None,
                # The host of the chief (or master) may also run a worker, which then has local rank 1.
                local_rank=int(rank > 0 and host == names[0]) if runs_script else None,
            )
        )
    return processes


def _server(environment: Environment, membership: Membership, cluster: dict[str, list[str]], index: int) -> ProcessPlan:
    return ProcessPlan(
        name="ps",
        host=membership.names[index],
        role=Role.SERVER,
        argv=servers_command(environment),
        environment=Deferred(functools.partial(_variables, cluster, "ps", index)),
    )


def servers_command(environment: Environment) -> tuple[str, ...]:
    """Return the command of a process that runs a TensorFlow server without the script."""
    machine = environment.machine
    return (machine.python, "-I", os.path.join(machine.container_package, "__main__.py"), "serve")


def _variables(cluster: dict[str, list[str]], kind: str, index: int) -> dict[str, str]:
    variables = {"TF_CONFIG": _tf_config(cluster, kind, index)}
    if kind == "ps":
        variables["CUDA_VISIBLE_DEVICES"] = "-1"  # parameter servers use no GPU
    return variables


def _tf_config(cluster: dict[str, list[str]], kind: str, index: int) -> str:
    value: dict[str, Any] = {"cluster": cluster, "environment": "cloud", "task": {"type": kind, "index": index}}
    return json.dumps(value)
