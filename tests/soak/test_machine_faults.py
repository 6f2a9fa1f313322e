"""A hundred faults of machines, chosen by a seed: what goes wrong, with whom, where, and under which strategy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import fleet as fleets
import machine_faults
import places
import pytest
import slurm

if TYPE_CHECKING:
    import ec2_machines

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(not fleets.possible(), reason="network namespaces need root and iproute2"),
    pytest.mark.skipif(not slurm.possible(), reason="Slurm needs root and Debian's slurm-wlm and munge"),
]


@pytest.mark.parametrize("seed", [11, "new"], indirect=True)
def test_faults_of_machines_end_right(
    slurm_cluster: slurm.Cluster,
    fleet: fleets.Fleet,
    ec2: ec2_machines.Machines,
    home: Path,
    tmp_path: Path,
    count: Callable[[int], int],
    record: Callable[..., None],
    seed: int,
) -> None:
    met: list[str] = []
    problems: list[str] = []
    for number in range(count(100)):
        machine_fault = machine_faults.MachineFault.of(seed * 1000 + number)
        folder = tmp_path / str(number)
        folder.mkdir()
        if machine_fault.place == "slurm":
            make = places.on_slurm(slurm_cluster, folder, home)
        elif machine_fault.place == "ec2":
            make = places.on_ec2(ec2, folder, home)
        else:
            make = places.on_ssh(fleet, folder, home)
        try:
            ended = machine_faults.Stage(fleet, make, folder, ec2).play(machine_fault)
        except Exception as error:  # noqa: BLE001 - put on record
            problems.append(f"{number} of seed {seed}, {machine_fault}: {error!r}"[:600])
            break  # what is left would only spoil the next
        met.append(str(machine_fault))
        print(number, machine_fault, ended, flush=True)
        slurm_cluster.recover()
        ec2.reset()
    parts = [tuple(name.split("-")) for name in met]
    record(
        "fault-machines",
        seed=seed,
        count=len(met),
        places=dict(Counter(part[0] for part in parts)),
        who=dict(Counter(part[1] for part in parts)),
        faults=dict(Counter(part[2] for part in parts)),
        strategies=dict(Counter(part[3] for part in parts)),
        problems=problems,
    )
    assert problems == []
