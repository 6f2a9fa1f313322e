"""What a job asks of a partition that this would never give."""

from __future__ import annotations

from typing import Any

import pytest

from estimators.backends.slurm import partitions
from estimators.backends.slurm.options import SlurmOptions

TRAIN = {"Default": "YES", "State": "UP", "TotalNodes": "4", "MaxNodes": "UNLIMITED", "MaxTime": "UNLIMITED"}
SHORT = {"Default": "NO", "State": "UP", "TotalNodes": "4", "MaxNodes": "1", "MaxTime": "00:05:00"}
CLOSED = {"Default": "NO", "State": "DOWN", "TotalNodes": "1"}
KNOWN = {"train": TRAIN, "short": SHORT, "closed": CLOSED}


@pytest.mark.parametrize(
    ("options", "hosts", "reason"),
    [
        ({}, 4, None),
        ({}, 5, "instance_count=5, but partition 'train' gives a job at most 4 nodes. Ask for fewer nodes."),
        ({"partition": "trian"}, 1, "Did you mean 'train'"),
        ({"partition": "short", "time": 5}, 1, None),
        ({"partition": "short"}, 2, "gives a job at most 1 nodes"),
        ({"partition": "short", "time": "5:01"}, 1, "time='5:01', but partition 'short' allows at most 00:05:00"),
        ({"partition": "closed"}, 1, "partition 'closed' accepts no jobs now (it is DOWN)"),
        ({"partition": "closed,short"}, 1, None),  # Slurm takes the one that can have it
        ({"partition": "closed,short"}, 2, "Name another partition, or wait. instance_count=2"),
    ],
)
def test_what_no_partition_gives_is_refused(options: dict[str, Any], hosts: int, reason: str | None) -> None:
    said = partitions.refusal(SlurmOptions.of(options), hosts, KNOWN)
    assert said is None if reason is None else reason in str(said)


def test_without_a_default_partition_one_has_to_be_named() -> None:
    said = partitions.refusal(SlurmOptions.of({}), 1, {"short": SHORT, "closed": CLOSED})
    assert said is not None and said.endswith(
        "Name one of these partitions with backend_options={'partition': …}: closed, short."
    )
