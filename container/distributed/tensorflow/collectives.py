"""Define the collective operations for TensorFlow scripts. The operations can also reduce gradients.

The methods that exchange values are collective operations. All ranks must call these methods in the same order, with
values of the same shapes.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np

from container.contract.errors import DistributedError, RefusedError
from container.contract.strategies import CollectiveAllReduce
from container.distributed.core import collectives as core
from container.distributed.core.collectives import Array
from container.distributed.tensorflow.host_updates import HostUpdates

Value = TypeVar("Value")

#: Operations that can combine gradients and values.
OPERATIONS = ("average", "sum", "adasum", "max")


class TensorCollectives(core.Collectives, Protocol):
    """The interface of the collective operations, including those that reduce gradients."""

    def check_op(self, op: str) -> None:
        """Raise an error if gradients cannot be reduced with an operation in this kind of cluster or with this number
        of ranks.

        Args:
            op: One of :data:`OPERATIONS`.

        Raises:
            RefusedError: the operation is not supported.
        """

    def reduce(self, tensors: Sequence[Any], op: str, *, name: str) -> list[Any]:
        """Reduce tensors over the ranks, within or outside a ``tf.function``.

        Args:
            tensors: Dense floating-point tensors.
            op: One of :data:`OPERATIONS`.
            name: A name that distinguishes this operation from other operations in progress. The name must be the same
                on every rank.
        """

    def broadcast_arrays(self, arrays: Sequence[Array]) -> list[Array]:
        """Return rank 0's arrays on every rank. The arrays of all ranks must have the same shapes and types."""


class TensorsAlone(core.Alone):
    """The collective operations of a single process. These operations need no communication."""

    def check_op(self, op: str) -> None:
        """Accept every operation, because a single process reduces nothing."""

    def reduce(self, tensors: Sequence[Any], op: str, *, name: str) -> list[Any]:
        """Return the tensors unchanged, because this process is the only rank."""
        return list(tensors)

    def broadcast_arrays(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the arrays unchanged, because this process is the only rank."""
        return list(arrays)


class _OfArrays:
    """A base class that implements ``broadcast_object()`` and ``barrier()`` with operations on arrays."""

    def broadcast_object(self: TensorCollectives, value: Value) -> Value:
        """Return rank 0's value on every rank.

        The value is sent as a pickle. A pickle is safe here, because the ranks of a job trust each other and run the
        same script.
        """
        content = np.frombuffer(pickle.dumps(value) if self.rank == 0 else b"", np.uint8)
        [length] = self.broadcast_arrays([np.array([content.size], np.int64)])
        # Sent as int32, which both Horovod and TensorFlow can send. The length is rounded up to a power of 2, because
        # TensorFlow needs a separate graph for each length.
        padded = np.zeros(max(1024, 1 << (int(length[0]) - 1).bit_length()), np.uint8)
        padded[: content.size] = content
        [received] = self.broadcast_arrays([padded.view(np.int32)])
        if self.rank == 0:
            return value
        found: Value = pickle.loads(received.view(np.uint8)[: int(length[0])].tobytes())
        return found

    def barrier(self: TensorCollectives) -> None:
        """Wait until all ranks have called this method."""
        self.sum_arrays([np.zeros(1, np.float32)])


class HorovodTensors(_OfArrays):
    """The collective operations of Horovod. Horovod must already be initialized.

    Args:
        hvd: The module ``horovod.tensorflow``.
        host_updates: Whether rank 0 announces changes of the hosts to all ranks, as in an elastic job.

    Attributes:
        host_updates: The flag that tells all ranks of changes of the hosts. The flag is reduced together with the
            gradients. None if ``host_updates`` is False.
    """

    def __init__(self, hvd: Any, *, host_updates: bool = False) -> None:
        self._hvd = hvd
        self.host_updates = HostUpdates() if host_updates else None
        self._ops = {"average": hvd.Average, "sum": hvd.Sum, "adasum": hvd.Adasum, "max": hvd.Max}
        self._acts = 0

    @property
    def rank(self) -> int:
        """Return the number of this rank, as Horovod reports it."""
        return int(self._hvd.rank())

    @property
    def size(self) -> int:
        """Return the number of ranks, as Horovod reports it."""
        return int(self._hvd.size())

    def check_op(self, op: str) -> None:
        """Raise an error if the operation is Adasum and the number of ranks is not a power of 2.

        Raises:
            RefusedError: the operation is not supported with this number of ranks.
        """
        if op == "adasum" and self.size & (self.size - 1):
            raise RefusedError(
                f"Adasum needs 1, 2, 4, 8, … ranks; there are {self.size}. Change processes_per_host or instance_count."
            )

    def reduce(self, tensors: Sequence[Any], op: str, *, name: str) -> list[Any]:
        """Reduce the tensors with Horovod (see :class:`TensorCollectives`).

        Horovod sends several small tensors in one message. Horovod can send some tensors while others are still being
        computed.
        """
        return [
            self._hvd.allreduce(tensor, op=self._ops[op], name=f"{name}.{number}")
            for number, tensor in enumerate(tensors)
        ]

    def sum_arrays(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the sums of the arrays over all ranks."""
        summed = self.reduce([_tensor(array) for array in arrays], "sum", name=self._name("sum"))
        return [np.asarray(tensor) for tensor in summed]

    def broadcast_arrays(self, arrays: Sequence[Array]) -> list[Array]:
        """Return rank 0's arrays on every rank (see :class:`TensorCollectives`)."""
        name = self._name("broadcast")
        return [
            np.asarray(self._hvd.broadcast(_tensor(_sendable(array)), 0, name=f"{name}.{number}")).astype(array.dtype)
            for number, array in enumerate(arrays)
        ]

    def gather_array(self, array: Array) -> Array:
        """Return the arrays of all ranks, stacked in the order of the ranks."""
        return np.asarray(self._hvd.allgather(_tensor(array[np.newaxis]), name=self._name("gather")))

    def broadcast_numbers(self, numbers: Sequence[int], *, name: str) -> list[int]:
        """Return rank 0's numbers on every rank.

        Args:
            numbers: The numbers. All ranks must pass lists of the same length.
            name: The name of the operation. Only one operation of this name may be in progress. Horovod executes an
                operation faster if an earlier operation had the same name.
        """
        found = self._hvd.broadcast(_tensor(np.array(numbers, np.int64)), 0, name=f"fleetfit.{name}")
        return [int(number) for number in np.asarray(found)]

    def restart(self) -> None:
        """Reset the number of the next collective operation to 1, after a new rendezvous.

        Horovod matches the operations of the ranks by their names, which contain the numbers. A rank that joins begins
        with 1. Therefore all ranks must begin with 1 again.
        """
        self._acts = 0

    def _name(self, what: str) -> str:
        self._acts += 1
        return f"fleetfit.{what}.{self._acts}"


class TensorFlowCollectives(_OfArrays):
    """The collective operations of TensorFlow's ``MultiWorkerMirroredStrategy``.

    The model is created outside the strategy, and each rank reads its own batches. Only the reductions use the
    strategy. Such reductions also work with Keras 3, whose ``fit`` does not work with variables of the strategy. The
    strategy sends several small tensors in one message.

    Args:
        strategy: The strategy.
        options: The job's options for the strategy.
        rank: This process's rank.
        size: Number of ranks.
    """

    def __init__(self, strategy: Any, options: CollectiveAllReduce, *, rank: int, size: int) -> None:
        import tensorflow as tf

        self._tf = tf
        self._strategy = strategy
        self._options = communication_options(options)
        self.rank = rank
        self.size = size
        self._functions: dict[Any, Any] = {}

    def check_op(self, op: str) -> None:
        """Raise an error if the operation is Adasum, which only Horovod supports.

        Raises:
            RefusedError: the operation is Adasum.
        """
        if op == "adasum":
            raise RefusedError(
                "op='adasum' works only with Horovod; under collective_all_reduce, gradients can be averaged or "
                "summed. Use distribution=MPI(…) for Adasum."
            )

    def reduce(self, tensors: Sequence[Any], op: str, *, name: str) -> list[Any]:
        """Reduce the tensors with TensorFlow's collective operations (see :class:`TensorCollectives`)."""
        if op == "max":
            gather = partial(self._eager, self._all_gather) if self._tf.executing_eagerly() else self._all_gather
            return [self._tf.reduce_max(gather(tensor[None]), axis=0) for tensor in tensors]
        # One operation for each type: TensorFlow packs the tensors of one operation, and a pack must have one type.
        results: list[Any] = [None] * len(tensors)
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            places = [place for place, tensor in enumerate(tensors) if tensor.dtype == dtype]
            act = self._sum if op == "sum" else self._average
            packed = [tensors[place] for place in places]
            reduced = self._eager(act, packed) if self._tf.executing_eagerly() else act(packed)
            for place, tensor in zip(places, reduced, strict=True):
                results[place] = tensor
        return results

    def sum_arrays(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the sums of the arrays over all ranks."""
        summed = self.reduce([_tensor(array) for array in arrays], "sum", name="sum")
        return [np.asarray(tensor) for tensor in summed]

    def broadcast_arrays(self, arrays: Sequence[Array]) -> list[Array]:
        """Return rank 0's arrays on every rank (see :class:`TensorCollectives`).

        The result is the sum over all ranks. Ranks other than rank 0 contribute zeros.
        """
        sent = [_sendable(array) for array in arrays]
        if self.rank != 0:
            sent = [np.zeros_like(array) for array in sent]
        return [found.astype(array.dtype) for found, array in zip(self.sum_arrays(sent), arrays, strict=True)]

    def gather_array(self, array: Array) -> Array:
        """Return the arrays of all ranks, stacked in the order of the ranks."""
        return np.asarray(self._eager(self._all_gather, _tensor(array[np.newaxis])))

    def _eager(self, act: Any, tensors: Any) -> Any:
        """Execute a collective operation outside a ``tf.function``, and return the results.

        TensorFlow can execute collective operations only in a graph. Therefore one graph is created for each
        combination of the tensors' types and shapes.
        """
        listed = tensors if isinstance(tensors, list) else [tensors]
        key = (act, *((tensor.dtype, tuple(tensor.shape)) for tensor in listed))
        if key not in self._functions:
            # Each graph gets a separate callable, because TensorFlow warns if the same callable is traced repeatedly.
            self._functions[key] = self._tf.function(partial(act))
        return self._functions[key](tensors)

    def _sum(self, tensors: Sequence[Any]) -> list[Any]:
        return self._all_reduce(self._tf.distribute.ReduceOp.SUM, tensors)

    def _average(self, tensors: Sequence[Any]) -> list[Any]:
        return self._all_reduce(self._tf.distribute.ReduceOp.MEAN, tensors)

    def _all_reduce(self, op: Any, tensors: Sequence[Any]) -> list[Any]:
        tf = self._tf
        if not tensors:
            return []

        def within(*values: Any) -> Any:
            # Without the identity, TensorFlow fails with "destinations can not be empty".
            return tf.distribute.get_replica_context().all_reduce(
                op, [tf.identity(value) for value in values], options=self._options
            )

        return list(self._strategy.run(within, args=tuple(tensors)))

    def _all_gather(self, tensor: Any) -> Any:
        tf = self._tf

        def within(value: Any) -> Any:
            return tf.distribute.get_replica_context().all_gather(tf.identity(value), axis=0, options=self._options)

        return self._strategy.run(within, args=(tensor,))


def communication_options(options: CollectiveAllReduce) -> Any:
    """Convert the strategy's options to TensorFlow's ``CommunicationOptions``."""
    import tensorflow as tf

    kinds = tf.distribute.experimental.CommunicationImplementation
    return tf.distribute.experimental.CommunicationOptions(
        bytes_per_pack=options.bytes_per_pack,
        timeout_seconds=options.timeout_seconds,
        implementation={"ring": kinds.RING, "nccl": kinds.NCCL, "auto": kinds.AUTO}[options.communication],
    )


def _sendable(array: Array) -> Array:
    """Convert an array to a data type that can be sent without loss in every kind of cluster.

    Raises:
        DistributedError: arrays of this data type cannot be sent, or a value needs more than 64 bits with a sign.
    """
    if array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max:
        raise DistributedError("uint64 values beyond 2**63 - 1 cannot be sent.")
    if array.dtype.kind in "bui" and array.dtype not in (np.int32, np.int64):
        return array.astype(np.int64)
    if array.dtype.kind == "f" or array.dtype in (np.int32, np.int64):
        return array
    if array.dtype.name == "bfloat16":
        return array.astype(np.float32)
    raise DistributedError(f"arrays of type {array.dtype} cannot be sent. Use an array of numbers or booleans.")


def _tensor(array: Array) -> Any:
    import tensorflow as tf

    return tf.convert_to_tensor(array)
