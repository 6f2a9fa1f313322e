"""The script launcher: what several hosts without a strategy are told."""

from __future__ import annotations

import pytest

from container import launchers
from container.contract.environment import Environment, Machine


@pytest.mark.parametrize(
    ("channels", "said"),
    [
        ({}, "by itself, with all the data."),
        ({"train": "FullyReplicated"}, "by itself, with all the data."),
        ({"train": "ShardedByS3Key"}, "by itself, with its own share of 'train'."),
        (
            {"train": "ShardedByS3Key", "test": "FullyReplicated"},
            "by itself, with its own share of 'train' and all of 'test'.",
        ),
    ],
)
def test_what_of_the_data_each_host_has(channels: dict[str, str], said: str) -> None:
    environment = Environment.from_config(
        base_dir="/base",
        machine=Machine(python="python", cpus=2),
        hyperparameters={"sagemaker_program": "train.py"},
        resource_config={"current_host": "algo-1", "hosts": ["algo-1", "algo-2"]},
        input_data_config={name: {"S3DistributionType": how} for name, how in channels.items()},
    )
    (warning,) = launchers.plan_job(environment, ("python", "train.py")).warnings
    assert (
        warning.startswith("2 hosts without a distribution strategy: each host runs the whole script")
        and said in warning
    )
