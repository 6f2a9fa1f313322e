"""The plan of a job that trains on all devices of one host."""

from __future__ import annotations

import pytest

from container import launchers
from container.contract.environment import Environment, Machine
from container.contract.errors import ConfigurationError
from container.contract.hyperparameters import encode
from container.contract.plan import Plan, Role
from container.contract.strategies import Mirrored

COMMAND = ("python", "train.py")


def plan(hosts: int = 1, gpus: int = 0, devices: int | None = None) -> Plan:
    environment = Environment.from_config(
        base_dir="/opt/ml",
        machine=Machine(python="python", cpus=2, gpus=gpus, container_package="/pkg/container"),
        hyperparameters=encode(Mirrored(devices=devices).to_hyperparameters()),
        resource_config={"current_host": "algo-1", "hosts": [f"algo-{n}" for n in range(1, hosts + 1)]},
        input_data_config={},
    )
    return launchers.plan_job(environment, COMMAND)


def test_the_script_once_and_no_cluster() -> None:
    (process,) = plan(gpus=8).processes
    assert (process.name, process.role, process.rank, process.argv) == ("rank 0", Role.RANK, 0, COMMAND)
    assert "TF_CONFIG" not in process.environment


def test_what_cannot_be() -> None:
    with pytest.raises(ConfigurationError, match="for one host"):
        plan(hosts=2)
    with pytest.raises(ConfigurationError, match="more than the 2 GPUs"):
        plan(gpus=2, devices=3)
    assert plan(gpus=0, devices=3).ranks  # virtual ones
