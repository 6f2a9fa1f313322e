"""Every test has a home of its own, and leaves no process behind."""

from __future__ import annotations

from pathlib import Path

import places
import pytest
from homes import cloud, ec2, fleet, home, machines, make, nodes, place, ray_cluster, raylets, slurm_cluster

__all__ = [
    "cloud",
    "ec2",
    "fleet",
    "home",
    "machines",
    "make",
    "nodes",
    "place",
    "ray_cluster",
    "raylets",
    "slurm_cluster",
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests of clusters on other places too; see :mod:`places`."""
    if "place" in metafunc.fixturenames:
        metafunc.parametrize("place", places.of(metafunc), indirect=True)


@pytest.fixture(autouse=True)
def own_home(home: Path) -> None:
    """A home, also where a test does not ask for it."""
