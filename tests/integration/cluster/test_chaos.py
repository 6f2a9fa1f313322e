"""Troubles of machines (:mod:`chaos`): a few in every run, and as many as are asked for with `make soak`."""

from __future__ import annotations

from pathlib import Path

import chaos
import fleet as fleets
import places
import pytest
import slurm

pytestmark = pytest.mark.skipif(not fleets.possible(), reason="network namespaces need root and iproute2")

#: One of each fault, on each of the three, on ssh.
SAMPLE = [
    chaos.Trouble("ssh", "dispatcher", "kill", "mpi"),
    chaos.Trouble("ssh", "host", "stop", "elastic"),
    chaos.Trouble("ssh", "host", "slow", "script"),
    chaos.Trouble("ssh", "caller", "full", "script"),
    chaos.Trouble("ssh", "host", "clock", "mpi"),
]
EVERY = [
    chaos.Trouble(place, who, fault, strategy)
    for place in chaos.PLACES
    for fault, victims in chaos.FAULTS.items()
    for who in victims
    for strategy in chaos.STRATEGIES
    if place in chaos.places_of(fault, who)
]


@pytest.mark.parametrize(
    "trouble",
    [pytest.param(one, marks=[] if one in SAMPLE else pytest.mark.soak) for one in EVERY],
    ids=str,
)
def test_a_trouble_ends_right(
    trouble: chaos.Trouble, fleet: fleets.Fleet, tmp_path: Path, home: Path, request: pytest.FixtureRequest
) -> None:
    ec2 = None
    if trouble.place == "slurm":
        if not slurm.possible():
            pytest.skip("Slurm needs root and Debian's slurm-wlm and munge")
        make = places.on_slurm(request.getfixturevalue("slurm_cluster"), tmp_path, home)
    elif trouble.place == "ec2":
        ec2 = request.getfixturevalue("ec2")
        make = places.on_ec2(ec2, tmp_path, home)
    else:
        make = places.on_ssh(fleet, tmp_path, home)
    print(chaos.Stage(fleet, make, tmp_path, ec2).play(trouble))
