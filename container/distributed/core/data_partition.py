"""How a process's dataset is partitioned: all records, its host's share of them, or its own."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from container.contract.errors import RefusedError
from container.contract.names import unknown

HOLDINGS = ("all", "host", "rank")


def held_by(records: Any, holds: str | None) -> str:
    """Return which records a process's dataset has: all, its host's or its rank's.

    Args:
        records: The dataset.
        holds: What the script says; None to find out. A channel in Pipe mode knows; other datasets hold everything,
            unless the job has files that differ from host to host.

    Raises:
        ValueError: it is unknown.
        RefusedError: it cannot be found out.
    """
    if holds is not None:
        if holds not in HOLDINGS:
            raise ValueError(unknown("holds", holds, HOLDINGS))
        return holds
    found = {channel.holds for channel in channels_of(records)}
    if len(found) > 1:
        raise RefusedError(
            "the channels of the dataset are divided in different ways (FullyReplicated and ShardedByS3Key). Give "
            "all channels the same distribution, or pass cluster.dataset(holds=…)."
        )
    if found:
        return str(found.pop())
    if sharded := _sharded_files(os.environ):
        names = " and ".join(map(repr, sharded))
        raise RefusedError(
            f"channel {names} of this job is ShardedByS3Key: each host has different files. Say which records the "
            "dataset has: cluster.dataset(holds='host') if it reads these files, holds='all' if it reads other files."
        )
    return "all"


def _sharded_files(environ: Mapping[str, str]) -> list[str]:
    """Return the channels of this job whose files differ from host to host."""
    if len(json.loads(environ.get("SM_HOSTS") or "[]")) < 2:
        return []
    config = json.loads(environ.get("SM_INPUT_DATA_CONFIG") or "{}")
    return [
        name
        for name, channel in config.items()
        if channel.get("S3DistributionType") == "ShardedByS3Key" and channel.get("TrainingInputMode") != "Pipe"
    ]


def channels_of(records: Any) -> list[Any]:
    """Return the channels in Pipe mode that a dataset is made of."""
    pipes = sys.modules.get("container.pipe_dataset.dataset")  # if the script has imported it
    return list(pipes.sources_of(records)) if pipes is not None else []
