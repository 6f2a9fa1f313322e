"""What a process's dataset holds: all records, its host's share of them, or its own."""

from __future__ import annotations

import sys
from typing import Any

from container.contract.names import unknown
from container.distributed.errors import RefusedError

HOLDINGS = ("all", "host", "rank")


def held_by(records: Any, holds: str | None) -> str:
    """What a process's dataset holds.

    Args:
        records: The dataset.
        holds: What the script says; None to find out. A channel in Pipe mode knows; other datasets hold everything.

    Raises:
        ValueError: it is unknown.
    """
    if holds is not None:
        if holds not in HOLDINGS:
            raise ValueError(unknown("holds", holds, HOLDINGS))
        return holds
    found = {channel.holds for channel in channels_of(records)}
    if len(found) > 1:
        raise RefusedError(
            "the dataset is made of channels that are divided in different ways (FullyReplicated and ShardedByS3Key): "
            "give all of them one distribution, or say cluster.dataset(holds=…)."
        )
    return str(found.pop()) if found else "all"


def channels_of(records: Any) -> list[Any]:
    """The channels in Pipe mode that a dataset is made of."""
    pipes = sys.modules.get("container.pipe_dataset.dataset")  # if the script has imported it
    return list(pipes.sources_of(records)) if pipes is not None else []
