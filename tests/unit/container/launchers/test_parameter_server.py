"""The plan of a cluster with parameter servers."""

from __future__ import annotations

import json
from typing import Any

from container import launchers
from container.contract.environment import Environment, Machine
from container.contract.plan import Plan, Role
from container.contract.strategies import ParameterServer

COMMAND = ("python", "train.py")


def plan(hosts: int, **options: Any) -> Plan:
    environment = Environment.from_config(
        base_dir="/opt/ml",
        machine=Machine(python="python", cpus=2, container_package="/pkg/container"),
        hyperparameters={
            name: json.dumps(value) for name, value in ParameterServer(**options).to_hyperparameters().items()
        },
        resource_config={"current_host": "algo-1", "hosts": [f"algo-{n}" for n in range(1, hosts + 1)]},
        input_data_config={},
    )
    return launchers.plan_job(environment, COMMAND)


def tasks(planned: Plan) -> list[tuple[str, str, int | None, dict[str, Any]]]:
    return [
        (process.host, process.name, process.rank, json.loads(process.environment["TF_CONFIG"])["task"])
        for process in planned.processes
    ]


def test_every_host_has_a_worker_and_a_server_and_the_first_the_chief() -> None:
    planned = plan(2)
    assert tasks(planned) == [
        ("algo-1", "chief", 0, {"type": "chief", "index": 0}),
        ("algo-1", "worker", 1, {"type": "worker", "index": 0}),
        ("algo-1", "ps", None, {"type": "ps", "index": 0}),
        ("algo-2", "worker", 2, {"type": "worker", "index": 1}),
        ("algo-2", "ps", None, {"type": "ps", "index": 1}),
    ]
    cluster = json.loads(planned.processes[0].environment["TF_CONFIG"])["cluster"]
    assert cluster == {
        "chief": ["algo-1:2224"],
        "worker": ["algo-1:2222", "algo-2:2222"],
        "ps": ["algo-1:2223", "algo-2:2223"],
    }
    assert {process.argv for process in planned.ranks} == {COMMAND}
    assert planned.has_servers


def test_the_toolkits_cluster() -> None:
    planned = plan(3, cluster_spec="sagemaker")
    assert [(host, name) for host, name, _, _ in tasks(planned)] == [
        ("algo-1", "master"),
        ("algo-1", "ps"),
        ("algo-2", "worker"),
        ("algo-2", "ps"),
        ("algo-3", "worker"),
        ("algo-3", "ps"),
    ]
    assert json.loads(planned.processes[2].environment["TF_CONFIG"]) == {
        "cluster": {
            "master": ["algo-1:2222"],
            "ps": ["algo-1:2223", "algo-2:2223", "algo-3:2223"],
            "worker": ["algo-2:2222", "algo-3:2222"],
        },
        "environment": "cloud",
        "task": {"type": "worker", "index": 0},
    }
    assert planned.has_servers
    assert "once on each host" in planned.notes[0]


def test_the_toolkits_cluster_of_one_host_is_none() -> None:
    planned = plan(1, cluster_spec="sagemaker")
    assert [(process.name, process.rank, dict(process.environment)) for process in planned.processes] == [
        ("master", 0, {})
    ]
    assert not planned.has_servers
    assert "alone" in planned.notes[0]


def test_workers_only_serve_when_the_script_is_on_the_chief() -> None:
    planned = plan(2, script_on="chief")
    assert [process.name for process in planned.ranks] == ["chief"]
    workers = [process for process in planned.processes if process.name == "worker"]
    assert {process.role for process in workers} == {Role.SERVER}
    assert workers[0].argv == ("python", "-I", "/pkg/container/__main__.py", "serve")


def test_servers_take_no_gpu() -> None:
    servers = [process for process in plan(2).processes if process.name == "ps"]
    assert {process.environment["CUDA_VISIBLE_DEVICES"] for process in servers} == {"-1"}
