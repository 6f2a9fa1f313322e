"""Determine the cluster that a process belongs to. The only source is the process's environment variables."""

from __future__ import annotations

import dataclasses
import enum
import json
import socket
from collections.abc import Mapping
from typing import Any

from container.contract import variables
from container.contract.environment import hosts_here
from container.contract.errors import DistributedError, RefusedError
from container.contract.frozen import dataclass
from container.contract.names import unknown
from container.contract.strategies import (
    MPI,
    CollectiveAllReduce,
    Distribution,
    ElasticHorovod,
    ElasticTorchDistributed,
    Mirrored,
    ParameterServer,
    TorchDistributed,
    strategy_from_hyperparameters,
)

#: Variables that Open MPI, MPICH and horovodrun set for the processes they start: size, rank, local rank, local size.
_STARTERS = (
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("HOROVOD_SIZE", "HOROVOD_RANK", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
    ("PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)

#: The task types of TF_CONFIG that :func:`detect` accepts.
TASK_TYPES = ("chief", "worker", "ps")


class ClusterKind(enum.Enum):
    """The kind of cluster that the processes form. The values are the names of the strategies."""

    NONE = "none"
    HOROVOD = MPI.name
    ELASTIC = ElasticHorovod.name
    COLLECTIVE = CollectiveAllReduce.name
    MIRRORED = Mirrored.name
    PARAMETER_SERVER = ParameterServer.name
    TORCH = TorchDistributed.name


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """The cluster of a process, as described by the process's environment variables.

    Attributes:
        kind: The kind of cluster.
        strategy: The job's strategy with its options. Options that the job does not set have their default values. None
            if the process is not distributed.
        host: This host's name.
        rank: The process's rank, from 0. In a cluster with parameter servers, the index of the process's task.
        size: Number of ranks. In a cluster with parameter servers, the number of workers.
        local_rank: The process's number among the ranks of its host, from 0.
        local_size: Number of ranks on this host.
        machine_rank: The process's number among the ranks of its machine, from 0. Several hosts of the cluster may
            share a machine.
        machine_size: Number of ranks on this machine.
        task: The type of the process's task in TF_CONFIG. Empty without TF_CONFIG.
        addresses: The addresses (``address:port``) of the tasks of each type, by the task type, as in ``cluster`` of
            TF_CONFIG.
    """

    kind: ClusterKind = ClusterKind.NONE
    strategy: Distribution | None = None
    host: str = "localhost"
    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    machine_rank: int = 0
    machine_size: int = 1
    task: str = ""
    addresses: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)


def detect(environ: Mapping[str, str]) -> Surroundings:
    """Determine the cluster from a process's environment variables.

    Raises:
        DistributedError: the variables contradict each other, or cannot be read.
        RefusedError: ``container.distributed`` does not support the cluster.
    """
    strategy = _strategy(environ)
    host = environ.get("SM_CURRENT_HOST") or socket.gethostname()
    if isinstance(strategy, TorchDistributed | ElasticTorchDistributed) or (
        strategy is None and "TORCHELASTIC_RUN_ID" in environ
    ):
        return _torch(environ, strategy or TorchDistributed(), host)
    config = _tf_config(environ)
    started = next((names for names in _STARTERS if names[0] in environ), None)
    if isinstance(strategy, ElasticHorovod) or (strategy is None and environ.get("HOROVOD_ELASTIC") == "1"):
        return _elastic(environ, strategy or ElasticHorovod(), host)
    if isinstance(strategy, MPI) or (strategy is None and started and not config):
        if started is None:
            raise DistributedError(
                "the job's strategy is mpi, but this process was not started by mpirun, so it would train alone. "
                "Start it with fit(), mpirun or horovodrun, or take the strategy out of SM_FRAMEWORK_PARAMS."
            )
        return _started_by_mpirun(environ, started, strategy or MPI(), host)
    if strategy is None and started and config and int(environ[started[0]]) > 1:
        raise DistributedError(
            f"the job's strategy is not known, because both {started[0]} and TF_CONFIG describe a cluster. Unset one "
            "of these variables."
        )
    if isinstance(strategy, Mirrored):
        return Surroundings(kind=ClusterKind.MIRRORED, strategy=strategy, host=host)
    if config:
        return _from_tf_config(environ, config, strategy, host)
    if isinstance(strategy, ParameterServer) and not strategy.coordinated and len(_hosts(environ)) == 1:
        return Surroundings(host=host)  # a cluster of one host with SageMaker's parameter servers is not distributed
    if strategy is not None:
        raise DistributedError(
            f"the job's strategy is {strategy.name}, but TF_CONFIG is not set, so this process would train alone. "
            "Start it with fit(), set TF_CONFIG, or take the strategy out of SM_FRAMEWORK_PARAMS."
        )
    return Surroundings(host=host)


def detect_server(environ: Mapping[str, str]) -> Surroundings:
    """Determine the cluster of a process that only runs a parameter server.

    In SageMaker's clusters, the task "master" also runs the script. Therefore ``size`` counts the master in addition to
    the workers.

    Raises:
        DistributedError: TF_CONFIG cannot be read, or does not assign a parameter server's task to this process.
    """
    config = _tf_config(environ)
    if "master" not in (config.get("cluster") or {}):
        return detect(environ)
    addresses, task, index = _tasks(config)
    if task != "ps" or not 0 <= index < len(addresses.get(task, ())):
        raise DistributedError(f"TF_CONFIG must name a 'ps' task of its cluster, but names {task!r} {index}.")
    own = _machine(addresses[task][index])
    trained = [address for name in ("master", "worker") for address in addresses.get(name, ())]
    return Surroundings(
        kind=ClusterKind.PARAMETER_SERVER,
        host=environ.get("SM_CURRENT_HOST") or socket.gethostname(),
        rank=index,
        size=len(trained),
        machine_size=max(1, sum(_machine(address) == own for address in trained)),
        task=task,
        addresses=addresses,
    )


def _strategy(environ: Mapping[str, str]) -> Distribution | None:
    text = environ.get("SM_FRAMEWORK_PARAMS")
    if not text:
        return None
    try:
        parameters = json.loads(text)
        if not isinstance(parameters, dict):
            raise ValueError("not a JSON object")
        return strategy_from_hyperparameters(parameters)
    except (ValueError, TypeError) as error:
        raise DistributedError(f"SM_FRAMEWORK_PARAMS cannot be read: {error}. It is {text[:200]!r}.") from error


def _hosts(environ: Mapping[str, str]) -> list[Any]:
    """Return the hosts in ``SM_HOSTS``. Return an empty list if the variable is not set or cannot be read."""
    try:
        found = json.loads(environ.get("SM_HOSTS") or "[]")
    except ValueError:
        return []
    return found if isinstance(found, list) else []


def _tf_config(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the content of TF_CONFIG. Return an empty dict if TF_CONFIG does not describe a cluster."""
    text = environ.get("TF_CONFIG")
    if not text:
        return {}
    try:
        config = json.loads(text)
        if not isinstance(config, dict) or not isinstance(config.get("cluster") or {}, dict):
            raise ValueError("not an object with a 'cluster'")
    except ValueError as error:
        raise DistributedError(f"TF_CONFIG cannot be read: {error}. It is {text[:200]!r}.") from error
    return config if config.get("cluster") else {}


def _started_by_mpirun(
    environ: Mapping[str, str], names: tuple[str, ...], strategy: Distribution, host: str
) -> Surroundings:
    size, rank, local_rank, local_size = (
        _number(environ, name, default) for name, default in zip(names, (1, 0, 0, 1), strict=True)
    )
    return _of_ranks(environ, ClusterKind.HOROVOD, strategy, host, (rank, size, local_rank, local_size))


def _elastic(environ: Mapping[str, str], strategy: Distribution, host: str) -> Surroundings:
    """Return the cluster of a worker that Horovod's elastic driver has started.

    fleetfit's driver presents each worker to Horovod as a host with one slot. Therefore Horovod's local ranks are all
    0, and the local rank is read from fleetfit's own variables.
    """
    if environ.get("HOROVOD_ELASTIC") != "1" or not environ.get("HOROVOD_SIZE"):
        raise DistributedError(
            "the job's strategy is elastic_horovod, but this process was not started by Horovod's driver, so it "
            "would train alone. Start it with fit() or horovodrun, or take the strategy out of SM_FRAMEWORK_PARAMS."
        )
    size, rank = _number(environ, "HOROVOD_SIZE", 1), _number(environ, "HOROVOD_RANK", 0)
    ours = variables.ELASTIC_PLANNED in environ
    local_rank = _number(environ, variables.LOCAL_RANK if ours else "HOROVOD_LOCAL_RANK", 0)
    local_size = _number(environ, variables.LOCAL_SIZE if ours else "HOROVOD_LOCAL_SIZE", strategy.ranks_per_host)
    return _of_ranks(environ, ClusterKind.ELASTIC, strategy, host, (rank, size, local_rank, local_size))


def _torch(environ: Mapping[str, str], strategy: Distribution, host: str) -> Surroundings:
    missing = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if not environ.get(name)]
    if missing:
        raise DistributedError(
            f"the job's strategy is torch_distributed, but {', '.join(missing)} is not set, so this process would "
            "train alone. Start it with fit() or torchrun, or take the strategy out of SM_FRAMEWORK_PARAMS."
        )
    rank, size = _number(environ, "RANK", 0), _number(environ, "WORLD_SIZE", 1)
    local_rank = _number(environ, "LOCAL_RANK", 0)
    local_size = _number(environ, "LOCAL_WORLD_SIZE", strategy.ranks_per_host)
    return _of_ranks(environ, ClusterKind.TORCH, strategy, host, (rank, size, local_rank, local_size))


def _of_ranks(
    environ: Mapping[str, str],
    kind: ClusterKind,
    strategy: Distribution,
    host: str,
    numbers: tuple[int, int, int, int],
) -> Surroundings:
    """Return the cluster of a process whose rank, size, local rank and local size are known."""
    rank, size, local_rank, local_size = numbers
    shared = environ.get(variables.SHARED_MACHINE) == "1"
    return Surroundings(
        kind=kind,
        strategy=strategy,
        host=host,
        rank=rank,
        size=size,
        local_rank=local_rank,
        local_size=local_size,
        machine_rank=rank if shared else local_rank,
        machine_size=size if shared else local_size * hosts_here(environ),
    )


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name)
    if not text:
        return default
    if not text.isdecimal():
        raise DistributedError(f"{name} must be a whole number, as the launcher sets it, but is {text!r}.")
    return int(text)


def _from_tf_config(
    environ: Mapping[str, str], config: Mapping[str, Any], strategy: Distribution | None, host: str
) -> Surroundings:
    addresses, task, index = _tasks(config)
    if "master" in addresses and "chief" not in addresses:
        # SageMaker's clusters name the coordinating task "master"; scripts expect "chief".
        addresses = {"chief" if name == "master" else name: found for name, found in addresses.items()}
        task = "chief" if task == "master" else task
    if task == "evaluator":
        raise RefusedError("TF_CONFIG: an 'evaluator' task is not supported. Evaluate in the script, between epochs.")
    if task not in addresses or task not in TASK_TYPES:
        raise DistributedError(
            unknown("task type in TF_CONFIG", task, [name for name in addresses if name in TASK_TYPES])
        )
    if not 0 <= index < len(addresses[task]):
        raise DistributedError(
            f"TF_CONFIG: task index {index} of {task!r} is out of range; there are {len(addresses[task])}."
        )
    servers = isinstance(strategy, ParameterServer) or (strategy is None and "ps" in addresses)
    if servers:
        return _parameter_servers(environ, addresses, task, index, strategy or ParameterServer(), host)
    if "ps" in addresses:
        raise DistributedError("TF_CONFIG has a 'ps' task, but the job's strategy is collective_all_reduce.")
    return _collective(environ, addresses, task, index, strategy or CollectiveAllReduce(), host)


def _tasks(config: Mapping[str, Any]) -> tuple[dict[str, tuple[str, ...]], str, int]:
    """Return the cluster that TF_CONFIG describes, and this process's task type and task index in the cluster."""
    for task, of in config["cluster"].items():
        if not isinstance(of, list) or not of or not all(isinstance(address, str) for address in of):
            raise DistributedError(
                f"TF_CONFIG: the addresses of {task!r} must be a list such as ['host:2222'], not {of!r}."
            )
        if len(set(of)) < len(of):
            raise DistributedError(f"TF_CONFIG: two tasks of {task!r} have the same address: {of}.")
    try:
        addresses = {str(task): tuple(of) for task, of in config["cluster"].items()}
        task = str(config["task"]["type"])
        index = int(config["task"]["index"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DistributedError(
            f"a part of TF_CONFIG is missing or not valid: {error}. TF_CONFIG needs 'cluster', which maps each task "
            "type to its addresses, and 'task', which has a 'type' and an 'index'."
        ) from error
    return addresses, task, index


def _collective(
    environ: Mapping[str, str],
    addresses: Mapping[str, tuple[str, ...]],
    task: str,
    index: int,
    strategy: Distribution,
    host: str,
) -> Surroundings:
    ranks = [*addresses.get("chief", ()), *addresses.get("worker", ())]
    rank = index if task == "chief" else index + len(addresses.get("chief", ()))
    per_host = strategy.ranks_per_host
    if environ.get(variables.SHARED_MACHINE) == "1":
        # All hosts have the address of this one machine; ranks are numbered host by host.
        here = list(range(len(ranks)))
        local = [other for other in here if other // per_host == rank // per_host]
    else:
        here = local = [other for other, address in enumerate(ranks) if _machine(address) == _machine(ranks[rank])]
    return Surroundings(
        kind=ClusterKind.COLLECTIVE,
        strategy=strategy,
        host=host,
        rank=rank,
        size=len(ranks),
        local_rank=local.index(rank),
        local_size=len(local),
        machine_rank=here.index(rank),
        machine_size=len(here) * hosts_here(environ),
        task=task,
        addresses=addresses,
    )


def _parameter_servers(
    environ: Mapping[str, str],
    addresses: Mapping[str, tuple[str, ...]],
    task: str,
    index: int,
    strategy: Distribution,
    host: str,
) -> Surroundings:
    missing = [name for name in TASK_TYPES if not addresses.get(name)]
    if missing:
        raise DistributedError(
            f"TF_CONFIG: {', '.join(map(repr, missing))} is missing. A cluster with parameter servers has 'chief', "
            "'worker' and 'ps' tasks."
        )
    own = addresses[task][index]
    here = [number for number, address in enumerate(addresses["worker"]) if _machine(address) == _machine(own)]
    is_worker = task == "worker"
    return Surroundings(
        kind=ClusterKind.PARAMETER_SERVER,
        strategy=strategy,
        host=host,
        rank=index,
        size=len(addresses["worker"]),
        machine_rank=here.index(index) if is_worker else 0,
        machine_size=max(1, len(here)) * hosts_here(environ),
        task=task,
        addresses=addresses,
    )


def _machine(address: str) -> str:
    return address.rpartition(":")[0]
