"""Troubles of machines (:mod:`chaos`): a few in every run, and as many as are asked for with `make soak`."""

from __future__ import annotations

from pathlib import Path

import chaos
import fleet as fleets
import places
import pytest

pytestmark = pytest.mark.skipif(not fleets.possible(), reason="network namespaces need root and iproute2")

#: One of each fault, on each of the three, on ssh.
SAMPLE = [
    chaos.Trouble("ssh", "dispatcher", "kill", "mpi"),
    chaos.Trouble("ssh", "host", "stop", "elastic"),
    chaos.Trouble("ssh", "host", "slow", "script"),
    chaos.Trouble("ssh", "caller", "full", "script"),
]
EVERY = [
    chaos.Trouble("ssh", who, fault, strategy)
    for fault, victims in chaos.FAULTS.items()
    for who in victims
    for strategy in chaos.STRATEGIES
]


@pytest.mark.parametrize(
    "trouble",
    [pytest.param(one, marks=[] if one in SAMPLE else pytest.mark.soak) for one in EVERY],
    ids=str,
)
def test_a_trouble_ends_right(trouble: chaos.Trouble, fleet: fleets.Fleet, tmp_path: Path, home: Path) -> None:
    print(chaos.Stage(fleet, places.on_ssh(fleet, tmp_path, home), tmp_path).play(trouble))
