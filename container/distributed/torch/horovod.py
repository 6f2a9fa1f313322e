"""Collective operations and optimizers of ``horovod.torch``, for ranks that mpirun has started."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from container.contract.errors import DistributedError

Array = np.ndarray[Any, Any]
Value = TypeVar("Value")

#: Ranks find each other's operations by their names. Horovod's own ones are the type of what a rank passes, or how many
#: operations it has made, and ranks may differ in both.
_NAME = "fleetfit"


def load_horovod() -> Any:
    """Import ``horovod.torch``.

    Raises:
        DistributedError: there is none.
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
    """Horovod's. See :class:`container.distributed.core.collectives.Collectives`.

    Raises:
        DistributedError: there is no Horovod for PyTorch.
    """

    def __init__(self) -> None:
        self._hvd = load_horovod()
        self._hvd.init()

    @property
    def rank(self) -> int:
        """See :class:`container.distributed.core.collectives.Collectives`."""
        return int(self._hvd.rank())

    @property
    def size(self) -> int:
        """See :class:`container.distributed.core.collectives.Collectives`."""
        return int(self._hvd.size())

    def sum_arrays(self, arrays: Sequence[Array]) -> list[Array]:
        """See :class:`container.distributed.core.collectives.Collectives`."""
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
        """See :class:`container.distributed.core.collectives.Collectives`."""
        import torch

        mine = torch.from_numpy(np.array(array, copy=True, order="C"))[None]
        found: Array = self._hvd.allgather(mine, name=f"{_NAME}.gather").numpy()
        return found

    def broadcast_object(self, value: Value) -> Value:
        """See :class:`container.distributed.core.collectives.Collectives`."""
        found: Value = self._hvd.broadcast_object(value, root_rank=0, name=f"{_NAME}.object")
        return found

    def barrier(self) -> None:
        """See :class:`container.distributed.core.collectives.Collectives`."""
        # Horovod numbers its own barriers; a rank that joined later counts differently.
        self.sum_arrays([np.zeros(1)])

    def model(self, model: Any) -> Any:
        """Give every rank rank 0's parameters and buffers."""
        self._hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        return model

    def optimizer(self, optimizer: Any) -> Any:
        """Return the optimizer that averages the gradients over the ranks."""
        return self._hvd.DistributedOptimizer(optimizer)
