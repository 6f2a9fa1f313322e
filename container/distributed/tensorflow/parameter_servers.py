"""Define the cluster with parameter servers, as the chief uses it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from container.checkpoint import keras_compat
from container.checkpoint.keras_callback import KerasCallback
from container.checkpoint.keras_compat import Keras
from container.contract import variables
from container.contract.detection import Surroundings
from container.contract.errors import DistributedError, RefusedError
from container.distributed.core import data_partition
from container.distributed.tensorflow import data
from container.distributed.tensorflow.callbacks import SignsOfLife
from container.distributed.tensorflow.cluster import EVALUATION_BATCH, Cluster
from container.distributed.tensorflow.collectives import TensorCollectives
from container.distributed.tensorflow.data import MakeDataset, Parse

Value = TypeVar("Value")


def check_files(holds: str, workers: int, *, streams: bool) -> None:
    """Raise an error if the workers cannot read the files of their own hosts.

    If all hosts of the job are processes on one machine, each host's files are at a different path. The chief runs
    ``make_dataset`` for all workers, and knows only the path of its own files.

    Args:
        holds: Which records the dataset has. See :meth:`Cluster.dataset`.
        workers: Number of workers.
        streams: Whether the dataset reads channels in Pipe mode.

    Raises:
        RefusedError: all workers would read the files of the chief's host.
    """
    shares = holds != "all" and workers > 1 and not streams and data_partition.sharded_files(os.environ)
    if shares and os.environ.get(variables.SHARED_MACHINE) == "1":
        raise RefusedError(
            f"holds={holds!r}: with parameter_server, the chief makes the datasets, so all workers would read the "
            "files of algo-1, and no worker those of the other hosts. Give the channel input_mode='Pipe' or "
            "distribution='FullyReplicated'."
        )


class ParameterServerCluster(Cluster):
    """A cluster with parameter servers, for use in the chief. The chief coordinates the workers, which update the
    variables asynchronously.

    Attributes:
        rank: Always 0.
        size: Number of workers.
    """

    coordinates = True

    def __init__(self, surroundings: Surroundings, collectives: TensorCollectives, *, tf_strategy: Any) -> None:
        super().__init__(surroundings, collectives, tf_strategy=tf_strategy)
        self._workers = surroundings.size
        self._copies: dict[int, Any] = {}

    @property
    def size(self) -> int:
        """Return the number of workers."""
        return self._workers

    def scope(self) -> AbstractContextManager[Any]:
        """Return the context manager in which variables are created on the parameter servers."""
        scope: AbstractContextManager[Any] = self.tf_strategy.scope()
        return scope

    def optimizer(self, optimizer: Any, *, compression: str | None = None, op: str = "average") -> Any:
        """Return the optimizer unchanged: each worker applies its own gradients.

        See :meth:`Cluster.optimizer`.

        Raises:
            RefusedError: the optimizer is of Keras 3, or ``compression`` or ``op`` is not the default.
        """
        if keras_compat.keras_of(optimizer) is Keras.THREE:
            raise RefusedError(_NO_KERAS_3)
        self._refuse_reduction(
            compression,
            op,
            "with parameter_server, where each worker applies its own gradients. Use distribution=MPI(…) or "
            "CollectiveAllReduce(…), which reduce gradients over ranks.",
        )
        return optimizer

    @property
    def _scale_factor(self) -> int:
        return 1

    def _dataset(
        self, make_dataset: MakeDataset, global_batch_size: int, options: data.BatchOptions, resumable: bool | None
    ) -> Any:
        """Return the workers' datasets, which always repeat without end.

        ``make_dataset`` and ``parse`` are traced in this process, and run in the workers as graphs. Python code that is
        not part of the graph, such as a generator, would run in this process. A ``PipeModeDataset`` is read in the
        worker, from the FIFO of the worker's host.
        """
        data.per_rank_batch(global_batch_size, 1)
        self.global_batch_size = global_batch_size

        def for_worker(context: Any) -> Any:
            records = make_dataset()
            holds = data_partition.held_by(records, options.holds)
            check_files(holds, self._workers, streams=bool(data_partition.channels_of(records)))
            return data.worker_shard(
                records,
                dataclasses.replace(options, holds=holds),
                worker=_worker_index(),
                workers=self._workers,
                batch_size=global_batch_size,
            )

        try:
            import tf_keras
        except ImportError:
            raise RefusedError(_NO_KERAS_3) from None
        return tf_keras.utils.experimental.DatasetCreator(for_worker)

    def steps_per_epoch(
        self, make_dataset: MakeDataset, *, global_batch_size: int, records: int | None = None
    ) -> int | None:
        """Return the number of steps in an epoch. See :meth:`Cluster.steps_per_epoch`."""
        total = records if records is not None else self._count(make_dataset)
        if total < global_batch_size:
            raise DistributedError(
                f"global_batch_size={global_batch_size} is more than the {total} records of the dataset."
            )
        if total < self._workers:
            raise DistributedError(
                f"there are {total} records for {self._workers} workers, but each worker needs at least one record. "
                "Use fewer hosts."
            )
        return total // global_batch_size

    def callbacks(self, checkpointer: Any = None, **options: Any) -> list[Any]:
        """Return the callbacks for ``fit``. See :meth:`Cluster.callbacks`."""
        return [_RefuseModels(self.tf_strategy), *super().callbacks(checkpointer, **options)]

    def evaluate(
        self,
        model: Any,
        make_dataset: MakeDataset,
        *,
        batch_size: int = EVALUATION_BATCH,
        parse: Parse | None = None,
        holds: str | None = None,
    ) -> dict[str, float]:
        """Evaluate a copy of the model in this process, and count every record once. See :meth:`Cluster.evaluate`."""

        def here() -> Mapping[str, Any]:
            records = make_dataset()
            if self._workers > 1 and data_partition.held_by(records, holds) != "all":
                raise RefusedError(
                    "the chief would evaluate on algo-1's share only, because the channel is ShardedByS3Key. With "
                    "parameter_server, no other worker evaluates. Give the validation channel "
                    "distribution='FullyReplicated'."
                )
            shard = data.evaluation_shard(records, rank=0, size=1, batch_size=batch_size, parse=parse)
            found: Mapping[str, Any] = self._copy(model).evaluate(
                shard, return_dict=True, verbose=0, callbacks=[SignsOfLife()]
            )
            return found

        return {name: float(value) for name, value in _outside_any_scope(here).items()}

    def check_weights(self, model: Any) -> None:
        """Do nothing. There is only one copy of the weights, on the parameter servers."""

    def broadcast(self, model: Any) -> None:
        """Do nothing. There is only one copy of the weights, on the parameter servers."""

    def _local(self, model: Any) -> Any:
        return _outside_any_scope(lambda: self._copy(model))

    def _copy(self, model: Any) -> Any:
        import tf_keras

        copy = self._copies.get(id(model))
        if copy is None:
            try:
                copy = tf_keras.models.clone_model(model)
                if not copy.built:
                    # A subclassed model creates its variables at its first call; the original has been called.
                    arguments, options = model.save_spec()
                    copy(*_zeros(arguments), **_zeros(options))
            except (ValueError, NotImplementedError, TypeError) as error:
                raise RefusedError(
                    f"the model, a {type(model).__name__}, cannot be copied ({error}). With parameter_server, the "
                    "chief evaluates and exports a copy of the model. Define get_config(), or write a functional or "
                    "Sequential model."
                ) from error
            if (settings := model.get_compile_config()) is not None:
                # The copy does not train; the model's own optimizer has its variables on the servers.
                copy.compile_from_config({**settings, "optimizer": "sgd"})
            self._copies[id(model)] = copy
        copy.set_weights(model.get_weights())
        return copy


_NO_KERAS_3 = (
    "parameter_server needs tf_keras. Set TF_USE_LEGACY_KERAS=1 before TensorFlow is imported, and use tf.keras. "
    "Keras 3 does not work here: its fit() does not support parameter servers, and its optimizers lose updates of "
    "their iteration counter."
)


_NO_SCOPE = (
    "the model was made outside the strategy's scope, so it would not train on the parameter servers. Make and "
    "compile the model within `with cluster.scope():`."
)


class _RefuseModels(KerasCallback):
    """A callback that raises an error at the beginning of ``fit`` if the model cannot train on the parameter servers.

    Args:
        tf_strategy: The strategy in whose scope the model must have been created.
    """

    batch_hooks = False

    def __init__(self, tf_strategy: Any) -> None:
        self._tf_strategy = tf_strategy

    def set_model(self, model: Any) -> None:
        """Raise an error for a model of Keras 3, and for a model that was created outside the strategy's scope.

        Raises:
            RefusedError: the model cannot train on the parameter servers.
        """
        if keras_compat.keras_of(model) is Keras.THREE:
            raise RefusedError(_NO_KERAS_3)
        if model.distribute_strategy is not self._tf_strategy:
            raise RefusedError(_NO_SCOPE)


def _outside_any_scope(function: Callable[[], Value]) -> Value:
    """Call a function outside the strategy's scope, and return the function's result.

    The scope is active while Keras calls callbacks. A scope belongs to one thread, so the function is called in another
    thread.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(function).result()


def _worker_index() -> Any:
    """Return the worker's number. Only functions that create a worker's dataset may call this function.

    Raises:
        RefusedError: the dataset is created in the chief.
    """
    import tensorflow as tf

    try:
        return tf.distribute.coordinator.experimental_get_current_worker_index()
    except RuntimeError:  # fit() called the function in the chief
        raise RefusedError(_NO_SCOPE) from None


def _zeros(spec: Any) -> Any:
    """Return tensors of zeros for a structure of tensor specifications. An unknown dimension gets the size 1."""
    import tensorflow as tf

    return tf.nest.map_structure(
        lambda one: tf.zeros([1 if size is None else size for size in one.shape], one.dtype), spec
    )
