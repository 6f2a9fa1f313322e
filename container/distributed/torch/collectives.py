"""Collective operations on arrays and objects, by ``torch.distributed``.

Every method is a common act: all ranks must call it, in the same order, with values of the same shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

Array = np.ndarray[Any, Any]
Value = TypeVar("Value")


class Collectives(Protocol):
    """The interface of the collective operations."""

    @property
    def rank(self) -> int:
        """This process's rank."""

    @property
    def size(self) -> int:
        """The number of ranks."""

    def sum_arrays(self, arrays: Sequence[Array]) -> list[Array]:
        """Add up arrays over the ranks."""

    def gather_array(self, array: Array) -> Array:
        """Stack an array of every rank. Shape: (size, *array.shape)."""

    def broadcast_object(self, value: Value) -> Value:
        """Give every rank rank 0's value; what the others pass is not looked at."""

    def barrier(self) -> None:
        """Wait until every rank has come here."""


class Alone:
    """A single process, for which every collective operation is trivial."""

    rank = 0
    size = 1

    def sum_arrays(self, arrays: Sequence[Array]) -> list[Array]:
        """See :class:`Collectives`."""
        return list(arrays)

    def gather_array(self, array: Array) -> Array:
        """See :class:`Collectives`."""
        return array[np.newaxis]

    def broadcast_object(self, value: Value) -> Value:
        """See :class:`Collectives`."""
        return value

    def barrier(self) -> None:
        """See :class:`Collectives`."""


class TorchCollectives:
    """The default process group's.

    Args:
        device: Where tensors must be for its backend: NCCL's are on a GPU.
    """

    def __init__(self, device: Any) -> None:
        import torch.distributed as dist

        self._dist = dist
        self._device = device
        self.rank = int(dist.get_rank())
        self.size = int(dist.get_world_size())

    def sum_arrays(self, arrays: Sequence[Array]) -> list[Array]:
        """See :class:`Collectives`."""
        found = []
        for array in arrays:
            tensor = self._tensor(array)
            self._dist.all_reduce(tensor)
            found.append(tensor.cpu().numpy().reshape(np.shape(array)))
        return found

    def gather_array(self, array: Array) -> Array:
        """See :class:`Collectives`."""
        import torch

        tensor = self._tensor(array)
        every = [torch.empty_like(tensor) for _ in range(self.size)]
        self._dist.all_gather(every, tensor)
        return np.stack([one.cpu().numpy().reshape(np.shape(array)) for one in every])

    def broadcast_object(self, value: Value) -> Value:
        """See :class:`Collectives`."""
        found = [value]
        self._dist.broadcast_object_list(found, src=0, device=self._device)
        return found[0]

    def barrier(self) -> None:
        """See :class:`Collectives`."""
        self._dist.barrier()

    def _tensor(self, array: Array) -> Any:
        import torch

        return torch.from_numpy(np.array(array, copy=True, order="C", ndmin=1)).to(self._device)
