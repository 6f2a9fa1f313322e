"""The cluster as a training script sees it: the same for every strategy."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from container import events
from container.distributed import agreeing, data, holdings, kerases, optimizers
from container.distributed.callbacks import SignsOfLife, callbacks_for
from container.distributed.collectives import Collectives
from container.distributed.detection import Surroundings
from container.distributed.errors import DistributedError, RefusedError
from container.distributed.guard import Guard
from container.distributed.kerases import Keras
from container.distributed.progress import DataProgress

Value = TypeVar("Value")

#: The name TensorFlow Serving expects for the first version of a model.
_VERSION = "1"

_EVALUATION_BATCH = 256


class Cluster:
    """The processes that train together; :func:`container.distributed.init` makes it.

    This class serves one process and the synchronous strategies; :class:`ParameterServerCluster` the other.

    Args:
        surroundings: What the environment said.
        collectives: How the ranks talk.

    Attributes:
        strategy: The strategy's name: ``none``, ``mpi``, ``collective_all_reduce`` or ``parameter_server``.
        host: This host's name, as in ``SM_CURRENT_HOST``.
        local_rank: The rank on this host, from 0.
        local_size: The number of ranks of this host.
        collectives: How the ranks talk.
        global_batch_size: That of the last :meth:`dataset`.
        tf_strategy: TensorFlow's own ``tf.distribute`` strategy behind it, or None.
    """

    #: Whether this process coordinates workers, rather than being one of the ranks.
    coordinates = False

    def __init__(self, surroundings: Surroundings, collectives: Collectives, *, tf_strategy: Any = None) -> None:
        self.strategy = surroundings.kind.value
        self.host = surroundings.host
        self.local_rank = surroundings.local_rank
        self.local_size = surroundings.local_size
        self.collectives = collectives
        self.global_batch_size: int | None = None
        self.tf_strategy = tf_strategy
        #: Where the data of the last :meth:`dataset` is, if it is resumable.
        self.data_progress: DataProgress | None = None
        self._agreement: agreeing.Agreement | None = None
        self._counts: dict[tuple[Any, int], int] = {}

    def __repr__(self) -> str:
        return f"<Cluster {self.strategy}: rank {self.rank} of {self.size} on {self.host}>"

    # --- who ---

    @property
    def rank(self) -> int:
        """This process's number, from 0."""
        return self.collectives.rank

    @property
    def size(self) -> int:
        """How many processes compute gradients. Read it when it is needed: an elastic cluster changes."""
        return self.collectives.size

    @property
    def is_chief(self) -> bool:
        """Whether this process writes what is written once."""
        return self.rank == 0

    # --- the model ---

    def scope(self) -> AbstractContextManager[Any]:
        """Where the model must be made and compiled."""
        return contextlib.nullcontext()

    def optimizer(self, optimizer: Any, *, compression: str | None = None, op: str = "average") -> Any:
        """Let an optimizer reduce its gradients over the ranks, in its ``apply_gradients()``.

        With one process, and with parameter servers, there is nothing to reduce.

        Args:
            optimizer: One of tf_keras or Keras 3. It is changed, and returned.
            compression: ``"fp16"`` sends gradients as 16-bit floats, scaled into their range; steps in which that
                would lose something go as they are.
            op: ``"average"``, ``"sum"``, or ``"adasum"``, which needs no scaled learning rate (Horovod only).

        Raises:
            ValueError: an unknown option.
            RefusedError: the strategy, the Keras or the combination does not allow it.
        """
        return optimizers.distribute(optimizer, self.collectives, op=op, compression=compression)

    def scale(self, learning_rate: float, *, op: str = "average") -> float:
        """The learning rate for all ranks together: times their number, where they make each step together.

        Args:
            learning_rate: The rate that suits one process.
            op: As for :meth:`optimizer`: only averages are scaled. Adasum adapts by itself, and a sum already grows
                with the ranks.

        Raises:
            TypeError: it is not a number (a schedule has its own numbers to scale).
        """
        if callable(learning_rate) or isinstance(learning_rate, bool | str):
            raise TypeError(
                f"scale() takes a number, got {learning_rate!r}; scale the numbers that a schedule is made of instead."
            )
        return float(learning_rate) * (self._scale_factor if op == "average" else 1)

    @property
    def _scale_factor(self) -> int:
        return self.size

    # --- data ---

    def dataset(
        self,
        make_dataset: Callable[[], Any],
        *,
        global_batch_size: int,
        parse: Callable[..., Any] | None = None,
        shuffle: int | None = None,
        seed: int | None = None,
        repeat: bool = False,
        partition: str = "shard",
        remainder: str | None = None,
        holds: str | None = None,
        resumable: bool | None = None,
    ) -> Any:
        """This process's share of the training data, in batches, for ``fit``.

        Every rank gets as many batches as every other, and each record belongs to one rank. Where the ranks' shares
        are not equally large, elements become ``(x, y, sample_weight)``: a rank without a record gives a copy of weight
        zero, and the weights of the others make the mean over all ranks that of the real records. (Metrics count the
        weights when they are given to ``compile`` as ``weighted_metrics``.)

        Args:
            make_dataset: Returns a ``tf.data.Dataset`` of single records, not batched or repeated. If it holds all
                records, it must be the same and in the same order on every rank.
            global_batch_size: Records in one step of all ranks together. With parameter servers, whose workers make
                steps of their own, in each worker's step.
            parse: Applied to each record once it is clear whose it is, so that no rank parses others' records.
            shuffle: Records in the shuffle buffer; None for no shuffling.
            seed: For the shuffling; each rank shuffles differently.
            repeat: Whether it goes on without end; then ``fit`` needs ``steps_per_epoch``, and no weights are needed.
            partition: ``"shard"``: each record belongs to one rank, and is seen once in an epoch. ``"shuffle"``: every
                rank draws from a random order of all records, so that in an epoch some are seen by several ranks and
                some by none; nothing is dealt anew when the number of ranks changes.
            remainder: What becomes of records that do not make a whole batch on every rank: ``"pad"`` keeps them, with
                weights; ``"drop"`` leaves them out. None pads elements ``(x, y)`` and ``(x, y, sample_weight)``, and
                drops others, which cannot have weights.
            holds: What the dataset of this process has: ``"all"`` records, those of its ``"host"`` (a channel that is
                ShardedByS3Key), or this ``"rank"``'s own. None finds it out of channels in Pipe mode; the files of a
                channel that is ShardedByS3Key are the host's.
            resumable: Whether a training goes on within an epoch after a restart: checkpoints made by
                ``callbacks(checkpointer)`` hold which records were consumed, and each of the others is seen once.
                None: if the records come from channels in Pipe mode.

        Raises:
            TypeError: ``make_dataset`` cannot be called.
            ValueError: a batch size that cannot be divided, an unknown option, or records that cannot have weights.
            RefusedError: options that exclude each other.
        """
        _check_maker(make_dataset)
        data.check_partition(partition)
        data.check_remainder(remainder)
        batch_size = data.per_rank_batch(global_batch_size, self.size)
        self.global_batch_size = global_batch_size
        records = make_dataset()
        channels = holdings.channels_of(records)
        resumable = bool(channels) if resumable is None else resumable
        if resumable and (repeat or partition == "shuffle"):
            resumable = False
        self.data_progress = self._agreement = None
        if resumable:
            self.data_progress = DataProgress(
                channels, batch_size=batch_size, size=self.size, rank=self.rank, seed=seed, shuffled=bool(shuffle)
            )
        return data.training_shard(
            records,
            rank=self.rank,
            size=self.size,
            local_rank=self.local_rank,
            local_size=self.local_size,
            batch_size=batch_size,
            parse=parse,
            shuffle=shuffle,
            seed=seed,
            repeat=repeat,
            partition=partition,
            remainder=remainder,
            holds=holdings.held_by(records, holds),
            agreement=self._agree,
            progress=self.data_progress,
        )

    def _agree(self) -> agreeing.Agreement:
        self._agreement = agreeing.agree(self.collectives, self.host)
        return self._agreement

    @property
    def epoch_weight(self) -> float:
        """How much this rank's metrics of an epoch count: by its records, where the ranks have not equally many."""
        return float(self._agreement.records) if self._agreement is not None else 1.0

    def steps_per_epoch(
        self, make_dataset: Callable[[], Any], *, global_batch_size: int, records: int | None = None
    ) -> int | None:
        """What ``fit`` needs to know with parameter servers, where a dataset has no end; None otherwise.

        Args:
            make_dataset: As for :meth:`dataset`. Its records are counted, by reading them if it does not know.
            global_batch_size: As for :meth:`dataset`.
            records: How many there are, if you know.
        """
        return None

    # --- training ---

    def callbacks(
        self,
        checkpointer: Any = None,
        *,
        warmup_epochs: float = 0,
        validation: Callable[[], Any] | None = None,
        validation_parse: Callable[..., Any] | None = None,
        validation_batch_size: int = _EVALUATION_BATCH,
        report: bool = True,
    ) -> list[Any]:
        """Callbacks for ``fit``, for either Keras.

        They give all ranks rank 0's weights, compare the weights of all ranks after the first steps and fail when they
        differ, average what Keras logs over the ranks, and report phases and metrics to the job.

        Args:
            checkpointer: A :class:`container.checkpoint.Checkpointer`, to save and to resume.
            warmup_epochs: Epochs in which the learning rate rises from one rank's to that of all; only for synchronous
                strategies.
            validation: Makes a dataset as for :meth:`dataset`, on which the model is evaluated after each epoch.
            validation_parse: Applied to each of its records.
            validation_batch_size: Records of a batch of it.
            report: Whether to report the logs of each epoch as metrics.

        Raises:
            ValueError: an option out of range.
        """
        validate = None
        if validation is not None:
            make = validation

            def validate(model: Any) -> Mapping[str, float]:
                return self.evaluate(model, make, batch_size=validation_batch_size, parse=validation_parse)

        return callbacks_for(
            self, checkpointer=checkpointer, warmup_epochs=warmup_epochs, validate=validate, report=report
        )

    def evaluate(
        self,
        model: Any,
        make_dataset: Callable[[], Any],
        *,
        batch_size: int = _EVALUATION_BATCH,
        parse: Callable[..., Any] | None = None,
    ) -> dict[str, float]:
        """Evaluate a compiled model over all records, each counted once. All ranks must call it; all get the same.

        Metrics that are no means over records (AUC, for one) become the mean of the ranks' values.

        Args:
            model: The model.
            make_dataset: As for :meth:`dataset`; the number of its records must stay the same.
            batch_size: Records of a rank's batch.
            parse: Applied to each record.

        Raises:
            DistributedError: there are no records.
        """
        found_records = make_dataset()
        if self.size > 1 and holdings.channels_of(found_records) and holdings.held_by(found_records, None) != "all":
            raise RefusedError(
                "evaluate() needs all records on every rank, and the channel is ShardedByS3Key: give the validation "
                "channel distribution='FullyReplicated'; each rank then evaluates its part."
            )
        shard = data.evaluation_shard(found_records, rank=self.rank, size=self.size, batch_size=batch_size, parse=parse)
        records = self._count(make_dataset)
        mine = len(range(self.rank, records, self.size))
        if records == 0:
            raise DistributedError("there are no records to evaluate on.")
        found = model.evaluate(shard, return_dict=True, verbose=0, callbacks=[SignsOfLife()]) if mine else {}
        names: list[str] = self.collectives.broadcast_object(sorted(found))  # rank 0 always has some
        sums = np.array([float(found.get(name, 0.0)) * mine for name in names], np.float64)
        [totals] = self.collectives.sum_arrays([sums])
        return dict(zip(names, (totals / records).tolist(), strict=True))

    def _count(self, make_dataset: Callable[[], Any]) -> int:
        key = (make_dataset, self.size)
        if key not in self._counts:
            self._counts[key] = data.count(make_dataset())
        return self._counts[key]

    # --- together ---

    def broadcast_object(self, value: Value) -> Value:
        """Give every rank rank 0's value. All ranks must call it; what the others pass is not looked at."""
        return self.collectives.broadcast_object(value)

    def barrier(self) -> None:
        """Wait until every rank has come here."""
        self.collectives.barrier()

    def all_reduce(self, values: Any, *, op: str = "sum") -> Any:
        """Combine numbers or arrays over the ranks. All ranks must call it, with values of the same shapes.

        Args:
            values: A number, an array, or a list or dict of these.
            op: ``"sum"`` or ``"average"``.

        Returns:
            The same structure, of numpy arrays and floats.
        """
        if op not in ("sum", "average"):
            from container.contract.names import unknown

            raise ValueError(unknown("op", op, ("sum", "average")))
        if isinstance(values, Mapping):
            names = sorted(values)
            found = self.all_reduce([values[name] for name in names], op=op)
            return dict(zip(names, found, strict=True))
        alone = not isinstance(values, list | tuple)
        arrays = [np.asarray(value, np.float64) for value in ([values] if alone else values)]
        divisor = self.size if op == "average" else 1
        sums = [total / divisor for total in self.collectives.sum_arrays(arrays)]
        results = [float(total) if total.ndim == 0 else total for total in sums]
        return results[0] if alone else results

    def broadcast(self, model: Any) -> None:
        """Give every rank rank 0's weights and optimizer state, for loops without :meth:`callbacks`.

        Args:
            model: A built model, or a list of variables.
        """
        variables = list(model) if isinstance(model, list | tuple) else _variables(model)
        values = self.collectives.broadcast_arrays([kerases.value(variable) for variable in variables])
        for variable, found in zip(variables, values, strict=True):
            variable.assign(found)

    def check_weights(self, model: Any) -> None:
        """Compare the trainable weights of all ranks, for loops without :meth:`callbacks`.

        Args:
            model: A built model, or a list of variables.

        Raises:
            WeightsDifferError: on every rank, when they differ.
        """
        if isinstance(model, list | tuple):
            Guard(self.collectives).check(model)
        else:
            cause = optimizers.why_apart(model.optimizer) if getattr(model, "optimizer", None) is not None else ""
            Guard(self.collectives).check(model.trainable_variables, cause=cause)

    # --- results ---

    def report(self, /, **values: float) -> None:
        """Make metrics of the job: they are in ``job.metrics()``, with the rank that reported them.

        Raises:
            TypeError: a value is not a number.
        """
        found = {name: _number(name, value) for name, value in values.items()}
        for name, value in found.items():
            events.emit("metric", name=name, value=value)

    def export(self, model: Any, directory: str | os.PathLike[str] | None = None) -> Path | None:
        """Write the model as a SavedModel for TensorFlow Serving, on rank 0.

        Args:
            model: A built model.
            directory: It is written to ``<directory>/1``. None for ``$SM_MODEL_DIR``.

        Returns:
            The folder; None on other ranks.

        Raises:
            DistributedError: neither a directory nor SM_MODEL_DIR is given.
        """
        target = directory or os.environ.get("SM_MODEL_DIR")
        if not target:
            raise DistributedError("export() needs a directory: SM_MODEL_DIR is not set.")
        if not self.is_chief:
            return None
        return _write_saved_model(self._local(model), Path(target))

    def _local(self, model: Any) -> Any:
        """The model, with its variables in this process."""
        return model


class ParameterServerCluster(Cluster):
    """The chief of a cluster with parameter servers: it coordinates the workers, whose updates are asynchronous.

    Attributes:
        rank: 0.
        size: The number of workers.
    """

    coordinates = True

    def __init__(self, surroundings: Surroundings, collectives: Collectives, *, tf_strategy: Any) -> None:
        super().__init__(surroundings, collectives, tf_strategy=tf_strategy)
        self._workers = surroundings.size
        self._copies: dict[int, Any] = {}

    @property
    def size(self) -> int:
        """The number of workers."""
        return self._workers

    def scope(self) -> AbstractContextManager[Any]:
        """Where variables are made on the parameter servers."""
        scope: AbstractContextManager[Any] = self.tf_strategy.scope()
        return scope

    def optimizer(self, optimizer: Any, *, compression: str | None = None, op: str = "average") -> Any:
        """See :meth:`Cluster.optimizer`: workers apply their own gradients, and there is nothing to reduce."""
        if kerases.keras_of(optimizer) is Keras.THREE:
            raise RefusedError(_NO_KERAS_3)
        if compression not in (None, "none") or op != "average":
            asked = f"compression={compression!r}" if compression not in (None, "none") else f"op={op!r}"
            raise RefusedError(
                f"{asked} is for strategies that reduce gradients over ranks; with parameter_server each worker "
                "applies its own. Use distribution=MPI(…) or CollectiveAllReduce(…)."
            )
        return optimizer

    @property
    def _scale_factor(self) -> int:
        return 1

    def dataset(
        self,
        make_dataset: Callable[[], Any],
        *,
        global_batch_size: int,
        parse: Callable[..., Any] | None = None,
        shuffle: int | None = None,
        seed: int | None = None,
        repeat: bool = True,
        partition: str = "shard",
        remainder: str | None = None,
        holds: str | None = None,
        resumable: bool | None = None,
    ) -> Any:
        """See :meth:`Cluster.dataset`: the workers' datasets, which always repeat.

        ``make_dataset`` and ``parse`` are traced in this process and run in the workers, as graphs: what they do in
        Python, a generator for one, would be done here. ``PipeModeDataset`` is read in the worker, from its host's
        FIFO.
        """
        _check_maker(make_dataset)
        data.check_partition(partition)
        data.check_remainder(remainder)
        data.per_rank_batch(global_batch_size, 1)
        self.global_batch_size = global_batch_size

        def for_worker(context: Any) -> Any:
            records = make_dataset()
            return data.worker_shard(
                records,
                worker=_worker_index(),
                workers=self._workers,
                batch_size=global_batch_size,
                parse=parse,
                shuffle=shuffle,
                seed=seed,
                partition=partition,
                holds=holdings.held_by(records, holds),
            )

        try:
            import tf_keras
        except ImportError:
            raise RefusedError(_NO_KERAS_3) from None
        return tf_keras.utils.experimental.DatasetCreator(for_worker)

    def steps_per_epoch(
        self, make_dataset: Callable[[], Any], *, global_batch_size: int, records: int | None = None
    ) -> int | None:
        """See :meth:`Cluster.steps_per_epoch`."""
        total = records if records is not None else self._count(make_dataset)
        if total < global_batch_size:
            raise DistributedError(
                f"global_batch_size={global_batch_size} is more than the {total} records that there are."
            )
        if total < self._workers:
            raise DistributedError(
                f"there are {total} records for {self._workers} workers, and each needs one at least: use fewer hosts."
            )
        return total // global_batch_size

    def callbacks(self, checkpointer: Any = None, **options: Any) -> list[Any]:
        """See :meth:`Cluster.callbacks`."""
        return [_RefuseModels(self.tf_strategy), *super().callbacks(checkpointer, **options)]

    def evaluate(
        self,
        model: Any,
        make_dataset: Callable[[], Any],
        *,
        batch_size: int = _EVALUATION_BATCH,
        parse: Callable[..., Any] | None = None,
    ) -> dict[str, float]:
        """See :meth:`Cluster.evaluate`: here, on a copy of the model, so that every record counts once."""

        def here() -> Mapping[str, Any]:
            shard = data.evaluation_shard(make_dataset(), rank=0, size=1, batch_size=batch_size, parse=parse)
            found: Mapping[str, Any] = self._copy(model).evaluate(
                shard, return_dict=True, verbose=0, callbacks=[SignsOfLife()]
            )
            return found

        return {name: float(value) for name, value in _outside_any_scope(here).items()}

    def check_weights(self, model: Any) -> None:
        """There is one copy of the weights, on the parameter servers."""

    def broadcast(self, model: Any) -> None:
        """There is one copy of the weights, on the parameter servers."""

    def _local(self, model: Any) -> Any:
        return _outside_any_scope(lambda: self._copy(model))

    def _copy(self, model: Any) -> Any:
        import tf_keras

        copy = self._copies.get(id(model))
        if copy is None:
            try:
                copy = tf_keras.models.clone_model(model)
                if not copy.built:
                    # A subclassed model makes its variables when it is called; the original has been.
                    arguments, options = model.save_spec()
                    copy(*_zeros(arguments), **_zeros(options))
            except (ValueError, NotImplementedError, TypeError) as error:
                raise RefusedError(
                    f"with parameter_server the chief evaluates and exports a copy of the model, and "
                    f"{type(model).__name__} cannot be copied ({error}). Define get_config(), or make it a functional "
                    "or Sequential model."
                ) from error
            if (settings := model.get_compile_config()) is not None:
                # The copy does not train; the model's own optimizer belongs to the servers.
                copy.compile_from_config({**settings, "optimizer": "sgd"})
            self._copies[id(model)] = copy
        copy.set_weights(model.get_weights())
        return copy


_NO_KERAS_3 = (
    "parameter_server needs tf_keras: Keras 3's fit() takes no parameter servers, and its optimizers lose updates of "
    "their iteration counter there. Set TF_USE_LEGACY_KERAS=1 before TensorFlow is imported, and use tf.keras."
)


_NO_SCOPE = (
    "the model was made outside the strategy's scope, so that it would not train on the parameter servers: make and "
    "compile it within `with cluster.scope():`."
)


class _RefuseModels:
    """A callback that refuses a model that cannot train on the servers as soon as ``fit`` shows it.

    Args:
        tf_strategy: The strategy in whose scope the model must have been made.
    """

    def __init__(self, tf_strategy: Any) -> None:
        self._tf_strategy = tf_strategy

    def set_model(self, model: Any) -> None:
        if kerases.keras_of(model) is Keras.THREE:
            raise RefusedError(_NO_KERAS_3)
        if model.distribute_strategy is not self._tf_strategy:
            raise RefusedError(_NO_SCOPE)

    def _implements_train_batch_hooks(self) -> bool:
        return False

    _implements_test_batch_hooks = _implements_predict_batch_hooks = _implements_train_batch_hooks
    _supports_tf_logs = True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("on_") or name == "set_params":
            return lambda *args, **kwargs: None
        raise AttributeError(name)


def _outside_any_scope(function: Callable[[], Value]) -> Value:
    """Call a function outside the strategy's scope, in which ``fit`` calls its callbacks: a scope is a thread's."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(function).result()


def _check_maker(make_dataset: Any) -> None:
    if not callable(make_dataset):
        raise TypeError(
            f"dataset() takes a function that returns the tf.data.Dataset, such as lambda: dataset; got "
            f"a {type(make_dataset).__name__}."
        )


def _worker_index() -> Any:
    """The worker's number, within a function that makes its dataset."""
    import tensorflow as tf

    try:
        return tf.distribute.coordinator.experimental_get_current_worker_index()
    except RuntimeError:  # fit() called it here, in the chief
        raise RefusedError(_NO_SCOPE) from None


def _zeros(spec: Any) -> Any:
    """Values of a structure of tensor specifications; one record where a size is not known."""
    import tensorflow as tf

    return tf.nest.map_structure(
        lambda one: tf.zeros([1 if size is None else size for size in one.shape], one.dtype), spec
    )


def _variables(model: Any) -> list[Any]:
    found = list(model.variables)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        known = {id(variable) for variable in found}
        found += [variable for variable in kerases.optimizer_variables(optimizer) if id(variable) not in known]
    return found


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"report({name}=…) takes a number, got {value!r}.") from None


def _write_saved_model(model: Any, directory: Path) -> Path:
    """Write to a folder beside, then put it in place: what serves the folder never sees half a model."""
    staged = directory / f".staged-{_VERSION}-{os.getpid()}"
    target = directory / _VERSION
    directory.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(staged, ignore_errors=True)
    if kerases.keras_of(model) is Keras.THREE:
        model.export(str(staged), verbose=False)
    else:
        import tensorflow as tf

        tf.saved_model.save(model, str(staged))
    if target.exists():
        shutil.rmtree(target)
    staged.rename(target)
    return target


__all__: Sequence[str] = ["Cluster", "ParameterServerCluster"]
