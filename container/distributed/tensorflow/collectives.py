"""Collective operations of TensorFlow's synchronous strategies, which reduce gradients too.

Every method is a common act: all ranks must call it, in the same order, with values of the same shapes.
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

#: How gradients and values can be combined.
OPERATIONS = ("average", "sum", "adasum", "max")


class TensorCollectives(core.Collectives, Protocol):
    """The interface of the collective operations."""

    def check_op(self, op: str) -> None:
        """Refuse a way to combine gradients that this kind of cluster, or its size, does not have.

        Raises:
            RefusedError: it is one.
        """

    def reduce(self, tensors: Sequence[Any], op: str, *, name: str) -> list[Any]:
        """Combine tensors over the ranks, within or outside a ``tf.function``.

        Args:
            tensors: Dense floating-point tensors.
            op: One of :data:`OPERATIONS`.
            name: Tells this act from others that may be under way; the same on every rank.
        """

    def broadcast_arrays(self, arrays: Sequence[Array]) -> list[Array]:
        """Give every rank rank 0's arrays, which must have the same shapes and types everywhere."""


class TensorsAlone(core.Alone):
    """A single process, for which every collective operation is trivial."""

    def check_op(self, op: str) -> None:
        """See :class:`TensorCollectives`."""

    def reduce(self, tensors: Sequence[Any], op: str, *, name: str) -> list[Any]:
        """See :class:`TensorCollectives`."""
        return list(tensors)

    def broadcast_arrays(self, arrays: Sequence[Array]) -> list[Array]:
        """See :class:`TensorCollectives`."""
        return list(arrays)


class _OfArrays:
    """Operations that are made of those on arrays."""

    def broadcast_object(self: TensorCollectives, value: Value) -> Value:
        """See :class:`TensorCollectives`. The value is pickled: the ranks of a job trust each other."""
        content = np.frombuffer(pickle.dumps(value) if self.rank == 0 else b"", np.uint8)
        [length] = self.broadcast_arrays([np.array([content.size], np.int64)])
        # In int32, which both kinds of cluster can send; of few different lengths, each of which may need a graph.
        padded = np.zeros(max(1024, 1 << (int(length[0]) - 1).bit_length()), np.uint8)
        padded[: content.size] = content
        [received] = self.broadcast_arrays([padded.view(np.int32)])
        if self.rank == 0:
            return value
        found: Value = pickle.loads(received.view(np.uint8)[: int(length[0])].tobytes())
        return found

    def barrier(self: TensorCollectives) -> None:
        """See :class:`TensorCollectives`."""
        self.sum_arrays([np.zeros(1, np.float32)])


class HorovodTensors(_OfArrays):
    """Collective operations by Horovod, which has been initialized.

    Args:
        hvd: The module ``horovod.tensorflow``.
        host_updates: Whether rank 0 may tell of host updates, in an elastic job.

    Attributes:
        host_updates: What every reduction of gradients sends with them; None without.
    """

    def __init__(self, hvd: Any, *, host_updates: bool = False) -> None:
        self._hvd = hvd
        self.host_updates = HostUpdates() if host_updates else None
        self._ops = {"average": hvd.Average, "sum": hvd.Sum, "adasum": hvd.Adasum, "max": hvd.Max}
        self._acts = 0

    @property
    def rank(self) -> int:
        """See :class:`TensorCollectives`."""
        return int(self._hvd.rank())

    @property
    def size(self) -> int:
        """See :class:`TensorCollectives`."""
        return int(self._hvd.size())

    def check_op(self, op: str) -> None:
        """See :class:`TensorCollectives`."""
        if op == "adasum" and self.size & (self.size - 1):
            raise RefusedError(
                f"Adasum needs 1, 2, 4, 8, … ranks; there are {self.size}. Change processes_per_host or instance_count."
            )

    def reduce(self, tensors: Sequence[Any], op: str, *, name: str) -> list[Any]:
        """See :class:`TensorCollectives`. Horovod fuses small tensors, and reduces while others are computed."""
        return [
            self._hvd.allreduce(tensor, op=self._ops[op], name=f"{name}.{number}")
            for number, tensor in enumerate(tensors)
        ]

    def sum_arrays(self, arrays: Sequence[Array]) -> list[Array]:
        """See :class:`TensorCollectives`."""
        summed = self.reduce([_tensor(array) for array in arrays], "sum", name=self._name("sum"))
        return [np.asarray(tensor) for tensor in summed]

    def broadcast_arrays(self, arrays: Sequence[Array]) -> list[Array]:
        """See :class:`TensorCollectives`."""
        name = self._name("broadcast")
        return [
            np.asarray(self._hvd.broadcast(_tensor(_sendable(array)), 0, name=f"{name}.{number}")).astype(array.dtype)
            for number, array in enumerate(arrays)
        ]

    def gather_array(self, array: Array) -> Array:
        """See :class:`TensorCollectives`."""
        return np.asarray(self._hvd.allgather(_tensor(array[np.newaxis]), name=self._name("gather")))

    def broadcast_numbers(self, numbers: Sequence[int], *, name: str) -> list[int]:
        """Give every rank rank 0's numbers.

        Args:
            numbers: As many on every rank.
            name: Of what is often done, and never twice at once: Horovod remembers what it has negotiated.
        """
        found = self._hvd.broadcast(_tensor(np.array(numbers, np.int64)), 0, name=f"fleetfit.{name}")
        return [int(number) for number in np.asarray(found)]

    def restart(self) -> None:
        """Number collective operations from the first again: the ranks have met anew, and some are new."""
        self._acts = 0

    def _name(self, what: str) -> str:
        self._acts += 1
        return f"fleetfit.{what}.{self._acts}"


class TensorFlowCollectives(_OfArrays):
    """Collective operations by TensorFlow, through its ``MultiWorkerMirroredStrategy``.

    The model lives outside the strategy, and each rank feeds its own batches; only the reductions run within it. That
    works alike with tf_keras and with Keras 3, whose ``fit`` cannot handle the strategy's values, and the strategy
    packs small tensors into larger messages.

    Args:
        strategy: The strategy.
        options: The job's options for it.
        rank: This process's rank.
        size: The number of ranks.
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
        """See :class:`TensorCollectives`."""
        if op == "adasum":
            raise RefusedError(
                "op='adasum' works only with Horovod; under collective_all_reduce, gradients can be averaged or "
                "summed. Use distribution=MPI(…) for Adasum."
            )

    def reduce(self, tensors: Sequence[Any], op: str, *, name: str) -> list[Any]:
        """See :class:`TensorCollectives`."""
        if op == "max":
            gather = partial(self._eager, self._all_gather) if self._tf.executing_eagerly() else self._all_gather
            return [self._tf.reduce_max(gather(tensor[None]), axis=0) for tensor in tensors]
        # One act for each type: they are packed together, and a pack has one type.
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
        """See :class:`TensorCollectives`."""
        summed = self.reduce([_tensor(array) for array in arrays], "sum", name="sum")
        return [np.asarray(tensor) for tensor in summed]

    def broadcast_arrays(self, arrays: Sequence[Array]) -> list[Array]:
        """See :class:`TensorCollectives`. A sum to which only rank 0 adds something."""
        sent = [_sendable(array) for array in arrays]
        if self.rank != 0:
            sent = [np.zeros_like(array) for array in sent]
        return [found.astype(array.dtype) for found, array in zip(self.sum_arrays(sent), arrays, strict=True)]

    def gather_array(self, array: Array) -> Array:
        """See :class:`TensorCollectives`."""
        return np.asarray(self._eager(self._all_gather, _tensor(array[np.newaxis])))

    def _eager(self, act: Any, tensors: Any) -> Any:
        """Do it at once: collective operations need a graph, one for each kind of arguments."""
        listed = tensors if isinstance(tensors, list) else [tensors]
        key = (act, *((tensor.dtype, tuple(tensor.shape)) for tensor in listed))
        if key not in self._functions:
            # Each a callable of its own: TensorFlow warns of code that is traced again and again.
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
            # Without the identity: "destinations can not be empty".
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
    """Return TensorFlow's form of the strategy's options."""
    import tensorflow as tf

    kinds = tf.distribute.experimental.CommunicationImplementation
    return tf.distribute.experimental.CommunicationOptions(
        bytes_per_pack=options.bytes_per_pack,
        timeout_seconds=options.timeout_seconds,
        implementation={"ring": kinds.RING, "nccl": kinds.NCCL, "auto": kinds.AUTO}[options.communication],
    )


def _sendable(array: Array) -> Array:
    """Convert the array to a type that every kind of cluster can send without loss."""
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
