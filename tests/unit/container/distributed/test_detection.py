"""Which cluster a process finds in its environment; and the other decisions that need no TensorFlow."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from container.contract.detection import ClusterKind, Surroundings, detect, detect_server
from container.contract.errors import DistributedError
from container.contract.strategies import (
    MPI,
    CollectiveAllReduce,
    Distribution,
    ElasticHorovod,
    ParameterServer,
    TorchDistributed,
)
from container.distributed.core.rendezvous import wait_for
from container.distributed.tensorflow.callbacks import warm_rate
from container.distributed.tensorflow.data import per_rank_batch
from container.distributed.tensorflow.devices import Share, share

WORKERS = ["a:1", "a:2", "b:1", "b:2"]
SERVERS = {"chief": ["a:9"], "worker": ["a:1", "b:1", "b:2"], "ps": ["a:2", "b:3"]}


def config(cluster: dict[str, list[str]], kind: str, index: int) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})}


def job(strategy: Distribution | None) -> dict[str, str]:
    return {"SM_FRAMEWORK_PARAMS": json.dumps(strategy.to_hyperparameters() if strategy else {})}


def mpi(rank: int, size: int, local_rank: int = 0, local_size: int = 1) -> dict[str, str]:
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    values = (rank, size, local_rank, local_size)
    return {f"OMPI_COMM_WORLD_{name}": str(value) for name, value in zip(names, values, strict=True)}


def places(found: Surroundings) -> tuple[int, ...]:
    return (
        found.rank, found.size, found.local_rank, found.local_size, found.machine_rank, found.machine_size
    )  # fmt: skip


def test_nothing_is_one_process() -> None:
    for environ in ({}, job(None), {"TF_CONFIG": ""}, {"TF_CONFIG": "{}"}, {"TF_CONFIG": '{"cluster": {}}'}):
        found = detect({**environ, "SM_CURRENT_HOST": "algo-1"})
        assert (found.kind, found.host, places(found)) == (ClusterKind.NONE, "algo-1", (0, 1, 0, 1, 0, 1))


def test_started_by_mpirun() -> None:
    found = detect({**mpi(3, 4, 1, 2), **job(MPI(processes_per_host=2)), "SM_CURRENT_HOST": "algo-2"})
    assert (found.kind, found.host, places(found)) == (ClusterKind.HOROVOD, "algo-2", (3, 4, 1, 2, 1, 2))
    assert detect(mpi(0, 2)).kind is ClusterKind.HOROVOD
    assert detect({"HOROVOD_SIZE": "2", "HOROVOD_RANK": "1"}).rank == 1
    assert detect({"PMI_SIZE": "2", "PMI_RANK": "1"}).size == 2


def torch(**changes: str) -> dict[str, str]:
    values = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    return {**values, "MASTER_ADDR": "a", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "x", **changes}


def test_started_as_torchrun_starts() -> None:
    for environ in (torch(), {**torch(), **job(TorchDistributed())}):
        found = detect({**environ, "SM_CURRENT_HOST": "algo-2"})
        assert (found.kind, found.host, places(found)) == (ClusterKind.TORCH, "algo-2", (3, 4, 1, 2, 1, 2))
    assert places(detect({**torch(), "FLEETFIT_SHARED_MACHINE": "1"})) == (3, 4, 1, 2, 3, 4)
    with pytest.raises(DistributedError, match="WORLD_SIZE is not set, so this process would train alone"):
        detect({**torch(WORLD_SIZE=""), **job(TorchDistributed())})


def test_started_by_horovods_elastic_driver() -> None:
    """For Horovod, each slot is a host: only fleetfit's variables tell which GPU of the host a worker uses."""
    driver = {"HOROVOD_ELASTIC": "1", "HOROVOD_RANK": "3", "HOROVOD_SIZE": "4", "FLEETFIT_ELASTIC_PLANNED": "4"}
    ours = {"FLEETFIT_LOCAL_RANK": "1", "FLEETFIT_LOCAL_SIZE": "2", **job(ElasticHorovod(processes_per_host=2))}
    found = detect({**driver, **ours, "SM_CURRENT_HOST": "algo-2"})
    assert (found.kind, found.host, places(found)) == (ClusterKind.ELASTIC, "algo-2", (3, 4, 1, 2, 1, 2))
    assert places(detect({**driver, **ours, "FLEETFIT_SHARED_MACHINE": "1"})) == (3, 4, 1, 2, 3, 4)


def test_hosts_that_share_a_machine_share_its_devices() -> None:
    shared = {"FLEETFIT_SHARED_MACHINE": "1"}
    assert places(detect({**mpi(3, 4, 1, 2), **shared})) == (3, 4, 1, 2, 3, 4)
    same = ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3", "127.0.0.1:4"]
    environ = {**config({"worker": same}, "worker", 3), **job(CollectiveAllReduce(processes_per_host=2)), **shared}
    assert places(detect(environ)) == (3, 4, 1, 2, 3, 4)


def test_collective() -> None:
    found = detect(config({"worker": WORKERS}, "worker", 3))
    assert (found.kind, places(found)) == (ClusterKind.COLLECTIVE, (3, 4, 1, 2, 1, 2))
    found = detect({**config({"worker": WORKERS}, "worker", 0), **job(CollectiveAllReduce(communication="ring"))})
    assert found.strategy == CollectiveAllReduce(communication="ring")
    with_chief = {"chief": ["a:1"], "worker": ["a:2", "b:1"]}
    assert detect(config(with_chief, "chief", 0)).rank == 0
    assert detect(config(with_chief, "worker", 1)).rank == 2


def test_parameter_servers() -> None:
    chief = detect(config(SERVERS, "chief", 0))
    assert (chief.kind, chief.task, chief.rank, chief.size) == (ClusterKind.PARAMETER_SERVER, "chief", 0, 3)
    worker = detect({**config(SERVERS, "worker", 2), **job(ParameterServer())})
    assert (worker.rank, worker.machine_rank, worker.machine_size) == (2, 1, 2)
    assert detect(config(SERVERS, "ps", 1)).task == "ps"


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        (job(MPI()), ["mpi", "not started by mpirun", "train alone"]),
        (job(CollectiveAllReduce()), ["collective_all_reduce", "TF_CONFIG is not set"]),
        (job(ParameterServer()), ["parameter_server", "TF_CONFIG"]),
        ({**mpi(0, 2), **config({"worker": WORKERS}, "worker", 0)}, ["OMPI_COMM_WORLD_SIZE", "TF_CONFIG"]),
        ({"SM_FRAMEWORK_PARAMS": "{"}, ["SM_FRAMEWORK_PARAMS", "'{'"]),
        ({"SM_FRAMEWORK_PARAMS": "[1]"}, ["SM_FRAMEWORK_PARAMS"]),
        ({"TF_CONFIG": "worker"}, ["TF_CONFIG", "'worker'"]),
        ({"TF_CONFIG": '{"cluster": {"worker": ["a:1"]}}'}, ["TF_CONFIG", "'task'"]),
        (config({"worker": WORKERS}, "worker", 4), ["index 4", "there are 4"]),
        (config({"worker": WORKERS}, "wroker", 0), ["'wroker'", "Did you mean 'worker'?"]),
        (config({"ps": ["a:1"], "worker": ["a:2"]}, "worker", 0), ["'chief' is missing"]),
        ({**config(SERVERS, "worker", 0), **job(CollectiveAllReduce())}, ["'ps'", "collective_all_reduce"]),
        (config({"worker": "a:1"}, "worker", 0), ["addresses of 'worker'", "must be a list", "'a:1'"]),
        (config({"worker": ["a:1", "a:1"]}, "worker", 0), ["two tasks of 'worker' have the same address"]),
        (config({**SERVERS, "evaluator": ["a:9"]}, "evaluator", 0), ["'evaluator'", "Evaluate in the script"]),
        ({**mpi(0, 2), "OMPI_COMM_WORLD_RANK": "x"}, ["OMPI_COMM_WORLD_RANK", "whole number", "'x'"]),
    ],
)
def test_contradictions(environ: dict[str, str], words: list[str]) -> None:
    with pytest.raises(DistributedError) as caught:
        detect(environ)
    assert all(word in str(caught.value) for word in words), caught.value


def test_the_master_of_sagemakers_cluster_coordinates() -> None:
    cluster = {"master": ["a:1"], "worker": ["b:1"], "ps": ["a:2", "b:2"]}
    sagemakers = job(ParameterServer(cluster_spec="sagemaker"))
    master = detect({**config(cluster, "master", 0), **sagemakers})
    assert (master.kind, master.task, master.rank, master.size) == (ClusterKind.PARAMETER_SERVER, "chief", 0, 1)
    assert master.addresses == {"chief": ("a:1",), "worker": ("b:1",), "ps": ("a:2", "b:2")}
    worker = detect({**config(cluster, "worker", 0), **sagemakers})
    assert (worker.task, worker.rank, worker.machine_rank, worker.machine_size) == ("worker", 0, 0, 1)


def test_sagemakers_cluster_of_one_host_is_one_process() -> None:
    assert detect({**job(ParameterServer(cluster_spec="sagemaker")), "SM_HOSTS": '["algo-1"]'}).kind is ClusterKind.NONE
    with pytest.raises(DistributedError, match="TF_CONFIG"):
        detect({**job(ParameterServer(cluster_spec="sagemaker")), "SM_HOSTS": '["algo-1", "algo-2"]'})


def test_both_with_a_known_strategy() -> None:
    """The job's word decides."""
    both: dict[str, Any] = {**mpi(1, 2), **config({"worker": WORKERS}, "worker", 2)}
    assert detect({**both, **job(MPI())}).kind is ClusterKind.HOROVOD
    assert detect({**both, **job(CollectiveAllReduce())}).kind is ClusterKind.COLLECTIVE


def test_share_of_the_machine() -> None:
    assert share(rank=3, size=4, gpus=2, cores=8, environ={}) == Share(gpu=1, threads=2)
    assert share(rank=0, size=4, gpus=0, cores=2, environ={}) == Share(gpu=None, threads=1)
    assert share(rank=0, size=1, gpus=0, cores=2, environ={"OMP_NUM_THREADS": "7"}) == Share(gpu=None, threads=None)


def test_batches() -> None:
    assert per_rank_batch(256, 4) == 64
    assert per_rank_batch(np.int64(256), 4) == 64  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Use 256 or 260"):
        per_rank_batch(257, 4)
    with pytest.raises(ValueError, match="Use 4:"):
        per_rank_batch(3, 4)
    for wrong in (0, -1, 2.5, True):
        with pytest.raises(ValueError, match="whole number"):
            per_rank_batch(wrong, 1)  # type: ignore[arg-type]


def test_warm_up() -> None:
    rates = [warm_rate(0.4, size=4, share=share) for share in (0, 0.5, 1, 2)]
    assert rates == pytest.approx([0.1, 0.25, 0.4, 0.4])


def test_waiting_names_who_did_not_answer() -> None:
    with pytest.raises(DistributedError, match=r"no answer within 0.2 s from worker 1 \(127.0.0.1:9\)"):
        wait_for({"worker 1": "127.0.0.1:9"}, 0.2)


def test_a_server_of_tensorflow_1s_form_knows_its_cluster() -> None:
    """``init()`` refuses that form; what only serves has its place in it."""
    cluster = {"master": ["a:1"], "worker": ["b:1"], "ps": ["a:2", "b:2"]}
    found = detect_server(config(cluster, "ps", 1))
    assert (found.kind, found.task, found.rank, found.size) == (ClusterKind.PARAMETER_SERVER, "ps", 1, 2)
    assert found.machine_size == 1 and found.addresses["master"] == ("a:1",)
    with pytest.raises(DistributedError, match="names 'worker' 0"):
        detect_server(config(cluster, "worker", 0))
    with pytest.raises(DistributedError, match="names 'ps' 2"):
        detect_server(config(cluster, "ps", 2))
    assert detect_server(config(SERVERS, "ps", 1)) == detect(config(SERVERS, "ps", 1))
