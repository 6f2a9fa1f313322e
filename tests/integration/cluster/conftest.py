"""Every test has a home of its own, and leaves no process behind."""

from __future__ import annotations

from homes import (
    cloud,
    ec2,
    executors,
    fleet,
    home,
    machines,
    make,
    nodes,
    own_home,
    place,
    ray_cluster,
    raylets,
    slurm_cluster,
    spark,
)
from places import pytest_generate_tests

__all__ = [
    "cloud",
    "ec2",
    "executors",
    "fleet",
    "home",
    "machines",
    "make",
    "nodes",
    "own_home",
    "place",
    "pytest_generate_tests",
    "ray_cluster",
    "raylets",
    "slurm_cluster",
    "spark",
]
