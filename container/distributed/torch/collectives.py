"""Collective operations on arrays and objects, by ``torch.distributed``.

Every method is a common act: all ranks must call it, in the same order, with values of the same shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from container.distributed.core.collectives import Array

Value = TypeVar("Value")


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
        """See :class:`container.distributed.core.collectives.Collectives`."""
        found = []
        for array in arrays:
            tensor = self._tensor(array)
            self._dist.all_reduce(tensor)
            found.append(tensor.cpu().numpy().reshape(np.shape(array)))
        return found

    def gather_array(self, array: Array) -> Array:
        """See :class:`container.distributed.core.collectives.Collectives`."""
        import torch

        tensor = self._tensor(array)
        every = [torch.empty_like(tensor) for _ in range(self.size)]
        self._dist.all_gather(every, tensor)
        return np.stack([one.cpu().numpy().reshape(np.shape(array)) for one in every])

    def broadcast_object(self, value: Value) -> Value:
        """See :class:`container.distributed.core.collectives.Collectives`."""
        found = [value]
        self._dist.broadcast_object_list(found, src=0, device=self._device)
        return found[0]

    def barrier(self) -> None:
        """See :class:`container.distributed.core.collectives.Collectives`."""
        self._dist.barrier()

    def _tensor(self, array: Array) -> Any:
        import torch

        return torch.from_numpy(np.array(array, copy=True, order="C", ndmin=1)).to(self._device)
