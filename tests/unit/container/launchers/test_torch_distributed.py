"""The plan of a job whose ranks get what torchrun gives its workers."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from container import launchers
from container.contract.environment import Environment, Machine
from container.contract.hyperparameters import encode
from container.contract.membership import ClusterHost, Membership
from container.contract.strategies import TorchDistributed

COMMAND = ("python", "train.py")

#: What torchrun sets and we do not: its file for exceptions, and settings of its own processes.
NOT_OURS = {"TORCHELASTIC_ERROR_FILE"}


def environment(hosts: int = 2, processes: int = 2, *, cpus: int = 8, shared: bool = True) -> Environment:
    return Environment.from_config(
        base_dir="/opt/ml",
        machine=Machine(python="python", cpus=cpus, shared=shared, container_package="/pkg/container"),
        hyperparameters=encode(TorchDistributed(processes_per_host=processes).to_hyperparameters()),
        resource_config={
            "current_host": "algo-1",
            "hosts": [f"algo-{n}" for n in range(1, hosts + 1)],
            "network_interface_name": "lo" if shared else "eth0",
        },
        input_data_config={},
        job_name="job-1",
        attempt=3,
    )


def test_each_rank_knows_its_place() -> None:
    hosts = (
        ClusterHost(name="algo-1", slots=2, address="127.0.0.1", ports=(20001,)),
        ClusterHost(name="algo-2", slots=1, ports=(9,)),
    )
    plan = launchers.plan_job(environment(), COMMAND, Membership(hosts=hosts))
    names = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK")
    found = [tuple(int(rank.environment[name]) for name in names) for rank in plan.ranks]
    assert found == [(0, 0, 2, 0, 0), (1, 1, 2, 0, 1), (2, 0, 1, 1, 2)]
    for rank in plan.ranks:
        values = rank.environment
        assert (values["WORLD_SIZE"], values["GROUP_WORLD_SIZE"], values["ROLE_WORLD_SIZE"]) == ("3", "2", "3")
        assert (values["MASTER_ADDR"], values["MASTER_PORT"]) == ("127.0.0.1", "20001")
        assert (values["TORCHELASTIC_RUN_ID"], values["TORCHELASTIC_RESTART_COUNT"]) == ("job-1", "3")
        assert values["TORCHELASTIC_USE_AGENT_STORE"] == "False"  # rank 0 is to listen


def test_hosts_of_their_own_have_torchruns_port() -> None:
    plan = launchers.plan_job(environment(shared=False), COMMAND)
    assert {(p.environment["MASTER_ADDR"], p.environment["MASTER_PORT"]) for p in plan.ranks} == {("algo-1", "29500")}


@pytest.mark.torch
def test_torchrun_sets_nothing_else() -> None:
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.origin is not None
    agent = Path(spec.origin).parent / "distributed/elastic/agent/server/local_elastic_agent.py"
    (text,) = re.findall(r"worker_env = \{\n(.*?)\n            \}", agent.read_text(), re.DOTALL)
    theirs = {"LOCAL_RANK", *re.findall(r'^                "(\w+)":', text, re.MULTILINE)}
    ours = {name for rank in launchers.plan_job(environment(), COMMAND).ranks for name in rank.environment}
    assert theirs - ours - set(launchers.defaults(environment())) <= NOT_OURS
    assert len(theirs) > 10 and ours <= theirs | {"TORCH_NCCL_ASYNC_ERROR_HANDLING"}


def test_cores_are_divided_and_gloo_stays_where_the_hosts_meet() -> None:
    shared, apart = launchers.defaults(environment(cpus=8)), launchers.defaults(environment(cpus=8, shared=False))
    assert (shared["OMP_NUM_THREADS"], shared["GLOO_SOCKET_IFNAME"]) == ("2", "lo")
    assert (apart["OMP_NUM_THREADS"], apart["GLOO_SOCKET_IFNAME"]) == ("4", "eth0")
    alone = launchers.defaults(environment(hosts=1, shared=False))
    assert alone["OMP_NUM_THREADS"] == "4" and "GLOO_SOCKET_IFNAME" not in alone
    assert launchers.defaults(environment(cpus=1))["OMP_NUM_THREADS"] == "1"
