"""Collective operations and optimizers of ``horovod.torch``, for ranks that mpirun has started."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from container.contract.errors import DistributedError

Array = np.ndarray[Any, Any]
Value = TypeVar("Value")


class HorovodCollectives:
    """Horovod's. See :class:`container.distributed.torch.collectives.Collectives`.

    Raises:
        DistributedError: there is no Horovod for PyTorch, or it was built without MPI.
    """

    def __init__(self) -> None:
        try:
            import horovod.torch as hvd
        except ImportError as error:
            raise DistributedError(
                f"horovod.torch cannot be imported: {error}. "
                "`fleetfit install horovod torch` builds it for that, and with `tensorflow torch` for both; "
                "TorchDistributed(…) needs no Horovod."
            ) from error
        hvd.init()
        self._hvd = hvd
        self.rank = int(hvd.rank())
        self.size = int(hvd.size())

    def sum_arrays(self, arrays: Sequence[Array]) -> list[Array]:
        """See :class:`container.distributed.torch.collectives.Collectives`."""
        import torch

        handles = [
            self._hvd.allreduce_async(
                torch.from_numpy(np.array(array, copy=True, order="C", ndmin=1)), op=self._hvd.Sum
            )
            for array in arrays
        ]
        found = [self._hvd.synchronize(handle).numpy() for handle in handles]
        return [total.reshape(np.shape(array)) for total, array in zip(found, arrays, strict=True)]

    def gather_array(self, array: Array) -> Array:
        """See :class:`container.distributed.torch.collectives.Collectives`."""
        import torch

        mine = torch.from_numpy(np.array(array, copy=True, order="C"))[None]
        found: Array = self._hvd.allgather(mine).numpy()
        return found

    def broadcast_object(self, value: Value) -> Value:
        """See :class:`container.distributed.torch.collectives.Collectives`."""
        found: Value = self._hvd.broadcast_object(value, root_rank=0)
        return found

    def barrier(self) -> None:
        """See :class:`container.distributed.torch.collectives.Collectives`."""
        self._hvd.barrier()

    def model(self, model: Any) -> Any:
        """Give every rank rank 0's parameters and buffers."""
        self._hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        return model

    def optimizer(self, optimizer: Any) -> Any:
        """Return the optimizer that averages the gradients over the ranks."""
        return self._hvd.DistributedOptimizer(optimizer)
