"""A hundred troubles of machines, chosen by a seed: what goes wrong, with whom, where, and under which strategy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import chaos
import fleet as fleets
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
def test_troubles_of_machines_end_right(
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
        trouble = chaos.Trouble.of(seed * 1000 + number)
        folder = tmp_path / str(number)
        folder.mkdir()
        if trouble.place == "slurm":
            make = places.on_slurm(slurm_cluster, folder, home)
        elif trouble.place == "ec2":
            make = places.on_ec2(ec2, folder, home)
        else:
            make = places.on_ssh(fleet, folder, home)
        try:
            ended = chaos.Stage(fleet, make, folder, ec2).play(trouble)
        except Exception as error:  # noqa: BLE001 - put on record
            problems.append(f"{number} of seed {seed}, {trouble}: {error!r}"[:600])
            break  # what is left would only spoil the next
        met.append(str(trouble))
        print(number, trouble, ended, flush=True)
        slurm_cluster.recover()
        ec2.reset()
    parts = [tuple(name.split("-")) for name in met]
    record(
        "chaos-machines",
        seed=seed,
        troubles=len(met),
        places=dict(Counter(part[0] for part in parts)),
        who=dict(Counter(part[1] for part in parts)),
        faults=dict(Counter(part[2] for part in parts)),
        strategies=dict(Counter(part[3] for part in parts)),
        problems=problems,
    )
    assert problems == []
