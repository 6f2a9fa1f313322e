"""Share checkpoints between ranks. Rank 0 reads and writes the files. The other ranks receive the data that rank 0 has
read.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from container.checkpoint.errors import CheckpointError
from container.contract import detection
from container.contract.errors import DistributedError
from container.contract.frozen import dataclass

if TYPE_CHECKING:
    from container.checkpoint.store import Loaded

#: Maximum size, in bytes, of the pieces in which files are sent from rank 0 to the other ranks.
_BROADCAST_PIECE = 64 << 20

Value = TypeVar("Value")


class SavingCluster(Protocol):
    """The methods and properties of a cluster that a Checkpointer uses.

    ``rank`` and ``size`` may change. Therefore the Checkpointer reads both values at each save and restore.
    """

    @property
    def rank(self) -> int:
        """Return this process' rank."""

    @property
    def size(self) -> int:
        """Return the number of ranks."""

    def broadcast_object(self, value: Value) -> Value:
        """Return rank 0's value on all ranks. All ranks must call this method."""

    def barrier(self) -> None:
        """Wait until all ranks have called this method."""


@runtime_checkable
class Counting(Protocol):
    """A cluster in which a process on another host, with other files, may become rank 0.

    Attributes:
        saved: The number of the last checkpoint that any host has saved. The number is the same on all ranks.
    """

    saved: int


class SingleProcess:
    """A cluster with a single process."""

    rank = 0
    size = 1

    def broadcast_object(self, value: Value) -> Value:
        """Return the value unchanged, because this process is rank 0."""
        return value

    def barrier(self) -> None:
        """Return at once, because there are no other ranks."""


@dataclass(frozen=True)
class Refusal:
    """The error that prevented rank 0 from reading a checkpoint."""

    error: Exception


def surrounding_cluster() -> SavingCluster:
    """Return the default cluster of a Checkpointer: the cluster that ``container.distributed.init()`` has joined, or a
    single process.

    Raises:
        CheckpointError: the environment variables describe several ranks, but ``container.distributed.init()`` was not
            called. Without a cluster, each rank would write its own checkpoints.
    """
    joined: SavingCluster | None = getattr(sys.modules.get("container.distributed"), "_cluster", None)
    if joined is not None:
        return joined
    remedy = (
        "Call container.distributed.init() before the first use of the Checkpointer: rank 0 then saves, and all ranks "
        "restore the same checkpoint. If only one rank saves and restores, use "
        "Checkpointer(cluster=container.checkpoint.SingleProcess()) on that rank."
    )
    try:
        size = detection.detect(os.environ).size
    except (DistributedError, ValueError) as error:
        raise CheckpointError(f"it is not clear which ranks share the checkpoints: {error} {remedy}") from error
    if size > 1:
        raise CheckpointError(f"this process is one of {size} ranks, and the Checkpointer has no cluster. {remedy}")
    return SingleProcess()


def share(cluster: SavingCluster, found: Loaded | Refusal | None) -> Loaded | None:
    """Send rank 0's checkpoint to every rank. Return the checkpoint.

    Args:
        cluster: The cluster.
        found: On rank 0, the checkpoint, the error, or None if there is no checkpoint. On the other ranks, None.

    Returns:
        The checkpoint, or None if there is no checkpoint.

    Raises:
        Exception: the error that prevented rank 0 from reading a checkpoint.
    """
    from container.checkpoint.store import Loaded  # only now, because scripts without checkpoints import this module

    if cluster.size > 1:
        head: Any = found
        if isinstance(found, Loaded):
            sizes = {name: content.nbytes for name, content in found.files.items()}
            head = (dataclasses.replace(found, files={}), sizes)
        head = cluster.broadcast_object(head)
        if isinstance(head, tuple):
            loaded, sizes = head
            files = dict(found.files) if isinstance(found, Loaded) else {}
            for name, size in sizes.items():
                files[name] = _share_bytes(cluster, files.get(name), size)
            found = dataclasses.replace(loaded, files=files)
        else:
            found = head
    if isinstance(found, Refusal):
        raise found.error
    return found


def _share_bytes(cluster: SavingCluster, content: np.ndarray[Any, Any] | None, size: int) -> np.ndarray[Any, Any]:
    whole = content if content is not None else np.empty(size, np.uint8)
    for begin in range(0, size, _BROADCAST_PIECE):
        end = min(size, begin + _BROADCAST_PIECE)
        piece = cluster.broadcast_object(whole[begin:end].tobytes() if content is not None else None)
        if content is None:
            assert piece is not None
            whole[begin:end] = np.frombuffer(piece, np.uint8)
    return whole
