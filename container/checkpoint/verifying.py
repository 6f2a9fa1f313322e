"""Verify the checkpoints of a folder for somebody else than their training, and say so as JSON lines.

``main([DIR])`` prints a line for each checkpoint, the oldest first: ``name``, and ``damage``: what is wrong, or null.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from container.checkpoint.errors import CheckpointError
from container.checkpoint.store import CheckpointStore


def verify(directory: str) -> Iterator[tuple[str, str | None]]:
    """Yield each checkpoint's name and what is wrong with it; None where every byte is as it was saved.

    Args:
        directory: The folder of the checkpoints.
    """
    store = CheckpointStore(directory)
    for name in store.names():
        try:
            store.read(name)
        except FileNotFoundError:
            continue  # the training has deleted it, as there are newer ones
        except (CheckpointError, OSError) as error:
            yield name, str(error)
        else:
            yield name, None


def main(arguments: Sequence[str]) -> int:
    """Print what :func:`verify` yields of the folder that is named."""
    (directory,) = arguments
    for name, damage in verify(directory):
        print(json.dumps({"name": name, "damage": damage}), flush=True)
    return 0
