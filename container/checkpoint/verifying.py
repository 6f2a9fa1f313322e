"""Verify the checkpoints of a folder, and print the results as JSON lines for another program.

``main([DIR])`` prints a line for each checkpoint, the oldest first. A line has the fields ``name`` and ``damage``. The
field ``damage`` is a description of the damage, or null.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from container.checkpoint.errors import CheckpointError
from container.checkpoint.store import CheckpointStore


def verify(directory: str) -> Iterator[tuple[str, str | None]]:
    """Yield each checkpoint's name with a description of its damage. The description is None if the checkpoint is
    undamaged.

    Args:
        directory: The folder of the checkpoints.
    """
    store = CheckpointStore(directory)
    for name in store.names():
        try:
            store.read(name)
        except FileNotFoundError:
            continue  # the training has deleted the checkpoint, because there are newer ones
        except (CheckpointError, OSError) as error:
            yield name, str(error)
        else:
            yield name, None


def main(arguments: Sequence[str]) -> int:
    """Print a JSON line with the name and the damage of each checkpoint in the given folder.

    Returns:
        0, even if checkpoints are damaged.
    """
    (directory,) = arguments
    for name, damage in verify(directory):
        print(json.dumps({"name": name, "damage": damage}), flush=True)
    return 0
