"""Implement collective operations on arrays and objects with ``torch.distributed``.

Every method is a collective operation. All ranks must call the same methods in the same order, with values of the same
shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from container.distributed.core.collectives import Array

Value = TypeVar("Value")


class TorchCollectives:
    """The collective operations of ``torch.distributed`` in the default process group.

    Args:
        device: The device on which the process group's backend needs tensors. NCCL needs a GPU.
    """

    def __init__(self, device: Any) -> None:
        import torch.distributed as dist

        self._dist = dist
        self._device = device
        self.rank = int(dist.get_rank())
        self.size = int(dist.get_world_size())

    def sum_arrays(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the sum of each array over the ranks, by ``torch.distributed``."""
        found = []
        for array in arrays:
            tensor = self._tensor(array)
            self._dist.all_reduce(tensor)
            found.append(tensor.cpu().numpy().reshape(np.shape(array)))
        return found

    def gather_array(self, array: Array) -> Array:
        """Gather an array from every rank by ``torch.distributed``, and return the arrays as one array.

        Shape: (size, *array.shape).
        """
        import torch

        tensor = self._tensor(array)
        every = [torch.empty_like(tensor) for _ in range(self.size)]
        self._dist.all_gather(every, tensor)
        return np.stack([one.cpu().numpy().reshape(np.shape(array)) for one in every])

    def broadcast_object(self, value: Value) -> Value:
        """Return rank 0's value on every rank, by ``torch.distributed``."""
        found = [value]
        self._dist.broadcast_object_list(found, src=0, device=self._device)
        return found[0]

    def barrier(self) -> None:
        """Wait until every rank has called this method."""
        self._dist.barrier()

    def _tensor(self, array: Array) -> Any:
        import torch

        return torch.from_numpy(np.array(array, copy=True, order="C", ndmin=1)).to(self._device)
