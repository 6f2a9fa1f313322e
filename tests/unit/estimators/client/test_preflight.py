"""Each shortage is named with its numbers and a remedy; a job that fits says nothing."""

import dataclasses
from pathlib import Path

import pytest

from container.contract.hyperparameters import encode
from container.contract.strategies import MPI
from container.system import machine as machines
from container.system.machine import MachineFacts
from estimators.client.preflight import Demand, compare, preflight, refusal
from estimators.job.request import Resources, TrainingJobSpec

GB = 1_000_000_000

ROOMY = MachineFacts(
    cores=8, cores_of_machine=8, memory_bytes=64 * GB, memory_available_bytes=60 * GB, open_files_hard_limit=65536
)


def warn(demand: Demand, **machine: object) -> list[str]:
    return compare(demand, dataclasses.replace(ROOMY, **machine), disk_free_bytes=100 * GB)


def test_a_job_that_fits_says_nothing() -> None:
    assert warn(Demand(hosts=2, processes_per_host=4, strategy="mpi")) == []


@pytest.mark.parametrize(
    ("demand", "machine", "parts"),
    [
        ({"hosts": 2, "processes_per_host": 3}, {"cores": 2, "cores_of_machine": 2}, ["2 × 3 = 6 ranks on 2 cores"]),
        ({"processes_per_host": 2, "strategy": "mpi"}, {"cores": 1}, ["2 ranks on 1 core:", "subscribe", "affinity"]),
        ({"processes_per_host": 3}, {"cores": 2, "cpu_quota": 2.0}, ["quota leaves 2 of the machine's 8"]),
        ({"hosts": 4}, {"memory_available_bytes": 2 * GB}, ["4 processes", "2.4 GB", "2.0 GB of 64.0 GB", "fewer"]),
        ({"hosts": 2, "servers_per_host": 1}, {"memory_available_bytes": 2 * GB}, ["4 processes"]),
        ({"wants_gpu": True, "processes_per_host": 4}, {"gpus": ("H", "H")}, ["4 ranks per host share 2 GPUs", "=2"]),
    ],
)  # fmt: skip
def test_what_is_short_is_named_with_a_remedy(demand: dict, machine: dict, parts: list[str]) -> None:
    [text] = warn(Demand(**demand), **machine)
    for part in parts:
        assert part in text


def test_a_full_disk() -> None:
    [text] = compare(Demand(), ROOMY, disk_free_bytes=5_000_000, disk=Path("/home/me/.fleetfit/jobs"))
    for part in ("5.0 MB", "/home/me/.fleetfit/jobs", "fleetfit clean"):
        assert part in text


def test_a_job_elsewhere_is_not_compared_with_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = dataclasses.replace(ROOMY, memory_available_bytes=1, cores=1)
    monkeypatch.setattr(machines, "facts", lambda: tiny)
    resources = Resources(instance_type="ml.p3.2xlarge", instance_count=8)
    assert preflight(TrainingJobSpec(resources=resources)) == []
    here = dataclasses.replace(resources, instance_type="local_process")
    assert preflight(TrainingJobSpec(resources=here))


def test_a_spec_is_read_with_its_strategy() -> None:
    spec = TrainingJobSpec(
        hyperparameters=encode(MPI(processes_per_host=3).to_hyperparameters()),
        resources=Resources(instance_type="local_process", instance_count=2),
    )
    demand = Demand.of(spec)
    assert (demand.hosts, demand.processes_per_host, demand.ranks, demand.strategy) == (2, 3, 6, "mpi")


@pytest.mark.parametrize(
    ("demand", "machine", "said"),
    [
        ({"hosts": 500}, {"memory_bytes": 8 * GB}, "500 hosts with 1 process each need at least 10.0 GB of memory"),
        ({"hosts": 500}, {"open_files_hard_limit": 1024}, "need at least 2,000 open files"),
        ({"hosts": 500}, {"processes_limit": 400}, "Use at most 133 hosts, or other machines"),
        ({"processes_per_host": 4000}, {"memory_bytes": 8 * GB}, "Use fewer processes on each host"),
    ],
)
def test_what_cannot_start_at_all_is_refused(demand: dict, machine: dict, said: str) -> None:
    text = refusal(Demand(**demand), dataclasses.replace(ROOMY, **machine))
    assert text is not None and said in text


def test_what_may_run_slowly_is_not_refused() -> None:
    assert refusal(Demand(hosts=500, processes_per_host=2), ROOMY) is None
    assert refusal(Demand(hosts=500), dataclasses.replace(ROOMY, memory_bytes=0)) is None  # it is not known
