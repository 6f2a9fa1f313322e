"""Implement collective operations and optimizers with ``horovod.torch``, for the ranks of jobs with ``MPI`` or
``ElasticHorovod``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from container.contract.errors import DistributedError

Array = np.ndarray[Any, Any]
Value = TypeVar("Value")

#: Horovod matches the operations of the ranks by name. Horovod's default names contain the type of the value or the
#: number of earlier operations, which may differ between ranks. Therefore the names begin with this prefix and are the
#: same on all ranks.
_NAME = "fleetfit"


def load_horovod() -> Any:
    """Import ``horovod.torch``.

    Raises:
        DistributedError: ``horovod.torch`` cannot be imported.
    """
    try:
        import horovod.torch as hvd
    except ImportError as error:
        raise DistributedError(
            f"horovod.torch cannot be imported: {error}. Run `fleetfit install horovod torch`, or `fleetfit install "
            "horovod tensorflow torch` to build Horovod for both frameworks. Alternatively, use TorchDistributed(…), "
            "which needs no Horovod."
        ) from error
    return hvd


class HorovodCollectives:
    """The collective operations of Horovod for PyTorch. See
    :class:`container.distributed.core.collectives.Collectives`.

    Raises:
        DistributedError: Horovod is not installed for PyTorch.
    """

    def __init__(self) -> None:
        self._hvd = load_horovod()
        self._hvd.init()

    @property
    def rank(self) -> int:
        """Return this process's rank in Horovod."""
        return int(self._hvd.rank())

    @property
    def size(self) -> int:
        """Return the number of Horovod's ranks. In elastic jobs, this number can change."""
        return int(self._hvd.size())

    def sum_arrays(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the sum of each array over the ranks, by Horovod's allreduce."""
        import torch

        handles = [
            self._hvd.allreduce_async(
                torch.from_numpy(np.array(array, copy=True, order="C", ndmin=1)),
                op=self._hvd.Sum,
                name=f"{_NAME}.sum.{number}",
            )
            for number, array in enumerate(arrays)
        ]
        found = [self._hvd.synchronize(handle).numpy() for handle in handles]
        return [total.reshape(np.shape(array)) for total, array in zip(found, arrays, strict=True)]

    def gather_array(self, array: Array) -> Array:
        """Gather an array from every rank by Horovod, and return the arrays as one array. Shape: (size,
        *array.shape).
        """
        import torch

        mine = torch.from_numpy(np.array(array, copy=True, order="C"))[None]
        found: Array = self._hvd.allgather(mine, name=f"{_NAME}.gather").numpy()
        return found

    def broadcast_object(self, value: Value) -> Value:
        """Return rank 0's value on every rank, by Horovod's broadcast."""
        found: Value = self._hvd.broadcast_object(value, root_rank=0, name=f"{_NAME}.object")
        return found

    def barrier(self) -> None:
        """Wait until every rank has called this method. The implementation sums an array over the ranks."""
        # Horovod's own barriers are numbered, and a rank that joined later would begin with a different number.
        self.sum_arrays([np.zeros(1)])

    def model(self, model: Any) -> Any:
        """Send rank 0's parameters and buffers of a module to every rank. Return the module."""
        self._hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        return model

    def optimizer(self, optimizer: Any) -> Any:
        """Return a ``DistributedOptimizer`` that averages the gradients over the ranks before the given optimizer's
        step.
        """
        return self._hvd.DistributedOptimizer(optimizer)
