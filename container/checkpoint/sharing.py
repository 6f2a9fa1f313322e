"""Share checkpoints between ranks: rank 0 reads and writes, the others receive what it has read."""

from __future__ import annotations

import dataclasses
import os
import sys
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from container.checkpoint.errors import CheckpointError
from container.checkpoint.store import Loaded
from container.contract import detection
from container.contract.errors import DistributedError

#: Arrays go from rank 0 to the others in pieces of this many bytes.
_BROADCAST_PIECE = 64 << 20

Value = TypeVar("Value")


class SavingCluster(Protocol):
    """The cluster that a Checkpointer needs. ``rank`` and ``size`` are read anew each time."""

    @property
    def rank(self) -> int:
        """This process' number."""

    @property
    def size(self) -> int:
        """How many processes call the same methods."""

    def broadcast_object(self, value: Value) -> Value:
        """Return rank 0's value on all ranks; all of them call it."""

    def barrier(self) -> None:
        """Wait for all ranks; all of them call it."""


@runtime_checkable
class Counting(Protocol):
    """A cluster whose rank 0 may be another one later, on a host with other files.

    Attributes:
        saved: The number of the last checkpoint, wherever it was saved; the same on all ranks.
    """

    saved: int


class SingleProcess:
    """A cluster of one."""

    rank = 0
    size = 1

    def broadcast_object(self, value: Value) -> Value:
        """Return rank 0's value on all ranks; all of them call it."""
        return value

    def barrier(self) -> None:
        """Wait for all ranks; all of them call it."""


@dataclasses.dataclass(frozen=True)
class Refusal:
    """The reason why rank 0 could not restore."""

    error: Exception


def surrounding_cluster() -> SavingCluster:
    """Return the cluster of a Checkpointer that was given none.

    Raises:
        CheckpointError: the environment names several ranks, which would each begin and write for themselves.
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
    """Give every rank what rank 0 has found.

    Raises:
        Exception: what rank 0 was kept by.
    """
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
