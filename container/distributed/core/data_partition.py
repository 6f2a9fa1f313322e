"""Determine whether a process's dataset contains all records, the records of its host, or the records of its rank."""

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
    """Return which records the dataset of this process contains.

    Args:
        records: The dataset.
        holds: The value that the script has passed. This value is validated and returned. If None, the channels in Pipe
            mode that the dataset reads determine the result. A dataset that reads no such channel is assumed to contain
            all records. For such a dataset, an error is raised if the job has files that differ between hosts.

    Returns:
        "all" for all records, "host" for the records of this host, or "rank" for the records of this rank.

    Raises:
        ValueError: ``holds`` is not an allowed value.
        RefusedError: ``holds`` is None, and the channels of the dataset are divided in different ways, or the job has
            files that differ between hosts.
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
    if names := sharded_files(os.environ):
        raise RefusedError(
            f"channel {names} of this job is ShardedByS3Key: each host has different files. Say which records the "
            "dataset has: holds='host' if it reads these files, holds='all' if it reads other files. In fit() and "
            "callbacks(), validation_holds=… is for the validation."
        )
    return "all"


def sharded_files(environ: Mapping[str, str]) -> str:
    """Return the quoted names of the job's channels whose files differ between hosts. Return "" if there are none."""
    if len(json.loads(environ.get("SM_HOSTS") or "[]")) < 2:
        return ""
    config = json.loads(environ.get("SM_INPUT_DATA_CONFIG") or "{}")
    return " and ".join(
        repr(name)
        for name, channel in config.items()
        if channel.get("S3DistributionType") == "ShardedByS3Key" and channel.get("TrainingInputMode") != "Pipe"
    )


def channels_of(records: Any) -> list[Any]:
    """Return the channels in Pipe mode that a dataset reads."""
    pipes = sys.modules.get("container.pipe_dataset.dataset")  # if the script has imported it
    return list(pipes.sources_of(records)) if pipes is not None else []
