"""Faults of machines (:mod:`machine_faults`): a few in every run, and as many as are asked for with `make soak`."""

from __future__ import annotations

from pathlib import Path

import fleet as fleets
import machine_faults
import places
import pytest
import slurm

pytestmark = pytest.mark.skipif(not fleets.possible(), reason="network namespaces need root and iproute2")

#: One of each fault, on each of the three, on ssh.
SAMPLE = [
    machine_faults.MachineFault("ssh", "dispatcher", "kill", "mpi"),
    machine_faults.MachineFault("ssh", "host", "stop", "elastic"),
    machine_faults.MachineFault("ssh", "host", "slow", "script"),
    machine_faults.MachineFault("ssh", "caller", "full", "script"),
    machine_faults.MachineFault("ssh", "host", "clock", "mpi"),
]
EVERY = [
    machine_faults.MachineFault(place, who, fault, strategy)
    for place in machine_faults.PLACES
    for fault, victims in machine_faults.FAULTS.items()
    for who in victims
    for strategy in machine_faults.STRATEGIES
    if place in machine_faults.places_of(fault, who)
]


@pytest.mark.parametrize(
    "machine_fault",
    [pytest.param(one, marks=[] if one in SAMPLE else pytest.mark.soak) for one in EVERY],
    ids=str,
)
def test_a_machine_fault_ends_right(
    machine_fault: machine_faults.MachineFault,
    fleet: fleets.Fleet,
    tmp_path: Path,
    home: Path,
    request: pytest.FixtureRequest,
) -> None:
    ec2 = None
    if machine_fault.place == "slurm":
        if not slurm.possible():
            pytest.skip("Slurm needs root and Debian's slurm-wlm and munge")
        make = places.on_slurm(request.getfixturevalue("slurm_cluster"), tmp_path, home)
    elif machine_fault.place == "ec2":
        ec2 = request.getfixturevalue("ec2")
        make = places.on_ec2(ec2, tmp_path, home)
    else:
        make = places.on_ssh(fleet, tmp_path, home)
    print(machine_faults.Stage(fleet, make, tmp_path, ec2).play(machine_fault))
