"""Define the cluster for TensorFlow scripts, with the same API for every strategy."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from container.checkpoint import keras_compat
from container.checkpoint.keras_compat import Keras
from container.contract.detection import Surroundings
from container.contract.errors import RefusedError
from container.distributed.core import data_partition, step_alignment
from container.distributed.core.notice import Listener
from container.distributed.core.ranks import Ranks
from container.distributed.core.weight_check import Guard
from container.distributed.tensorflow import data, evaluating, optimizers
from container.distributed.tensorflow.callbacks import SignsOfLife, callbacks_for
from container.distributed.tensorflow.collectives import TensorCollectives
from container.distributed.tensorflow.data import MakeDataset, Parse
from container.distributed.tensorflow.progress import DataProgress, TrainingData, why_not

#: Name of the folder in which TensorFlow Serving expects the first version of a model.
_VERSION = "1"

EVALUATION_BATCH = 256


class Cluster(Ranks[TensorCollectives]):
    """The cluster of processes that train together. :func:`container.distributed.init` creates the cluster.

    This class is for one process and for the synchronous strategies. A cluster with parameter servers is a
    :class:`container.distributed.tensorflow.parameter_servers.ParameterServerCluster`.

    Args:
        surroundings: The cluster as detected from the environment variables.
        collectives: The collective operations of the ranks.
        tf_strategy: TensorFlow's own ``tf.distribute`` strategy, or None.

    Attributes:
        global_batch_size: The global batch size that was passed to the last call of :meth:`dataset`.
        tf_strategy: TensorFlow's own ``tf.distribute`` strategy, or None.
    """

    def __init__(self, surroundings: Surroundings, collectives: TensorCollectives, *, tf_strategy: Any = None) -> None:
        super().__init__(surroundings, collectives)
        self.global_batch_size: int | None = None
        self.tf_strategy = tf_strategy
        #: Position of the training in its data.
        self.training_data = TrainingData()
        self._agreement: step_alignment.Agreement | None = None
        self._counts: dict[tuple[Any, int], int] = {}

    @property
    def replicas(self) -> int:
        """Return the number of copies of the model that compute gradients in each step.

        This is :attr:`size`. In a subclass whose one process uses several devices, it is the number of devices.
        """
        return self.size

    # --- the model ---

    def scope(self) -> AbstractContextManager[Any]:
        """Return the context manager in which the model must be created and compiled."""
        return contextlib.nullcontext()

    def optimizer(self, optimizer: Any, *, compression: str | None = None, op: str = "average") -> Any:
        """Change an optimizer so that the optimizer's ``apply_gradients()`` reduces the gradients over the ranks.

        With one process, there is nothing to reduce. With parameter servers or ``mirrored``, the optimizer is returned
        unchanged.

        Args:
            optimizer: An optimizer of tf_keras or Keras 3. This object is changed and returned.
            compression: With ``"fp16"``, gradients are scaled to the range of 16-bit floats, and sent as 16-bit floats.
                In steps in which the compression would lose too much precision, gradients are sent uncompressed. None
                for no compression.
            op: The reduction: ``"average"``, ``"sum"`` or ``"adasum"``. ``"adasum"`` is available only with Horovod,
                and needs no scaled learning rate.

        Raises:
            ValueError: an option is unknown.
            RefusedError: the strategy, the version of Keras or their combination does not support the options.
        """
        return optimizers.distribute(optimizer, self.collectives, op=op, compression=compression)

    def _refuse_reduction(self, compression: str | None, op: str, where: str) -> None:
        """Raise an error if ``compression`` or ``op`` of :meth:`optimizer` is set. This check is for clusters that do
        not reduce gradients over ranks.

        Args:
            compression: The option ``compression`` of :meth:`optimizer`.
            op: The option ``op`` of :meth:`optimizer`.
            where: The rest of the error message, which names the strategy and the remedy.

        Raises:
            RefusedError: ``compression`` or ``op`` is not the default.
        """
        if compression not in (None, "none") or op != "average":
            asked = f"compression={compression!r}" if compression not in (None, "none") else f"op={op!r}"
            raise RefusedError(f"{asked} is not available {where}")

    def scale(self, learning_rate: float, *, op: str = "average") -> float:
        """Return the learning rate for a training with all ranks. If all ranks do each step together, ``learning_rate``
        is multiplied by the number of the model's copies (:attr:`replicas`).

        Args:
            learning_rate: The learning rate for one process.
            op: The reduction, as in :meth:`optimizer`. The learning rate is scaled only for ``"average"``. ``"adasum"``
                needs no scaled rate, because Adasum adapts to the number of ranks. ``"sum"`` needs no scaled rate,
                because a sum grows with the number of ranks.

        Raises:
            TypeError: ``learning_rate`` is not a number. To scale a schedule, scale the numbers in the schedule.
        """
        if callable(learning_rate) or isinstance(learning_rate, bool | str):
            raise TypeError(f"scale() takes a number, got {learning_rate!r}; for a schedule, scale the numbers in it.")
        return float(learning_rate) * (self._scale_factor if op == "average" else 1)

    @property
    def _scale_factor(self) -> int:
        return self.replicas

    # --- data ---

    def dataset(
        self,
        make_dataset: MakeDataset,
        *,
        global_batch_size: int,
        parse: Parse | None = None,
        shuffle: int | None = None,
        seed: int | None = None,
        repeat: bool = False,
        partition: str = "shard",
        remainder: str | None = None,
        holds: str | None = None,
        resumable: bool | None = None,
    ) -> Any:
        """Return this process's batches of the training data, for ``fit``.

        Every rank gets the same number of batches, and each record belongs to one rank. If the ranks' numbers of
        records differ, elements become ``(x, y, sample_weight)``. A rank that has no record left for a batch gets a
        copy of another record, with weight zero. The weights of all other records are chosen so that the mean over all
        ranks equals the mean of the real records. A metric uses these weights only if the metric is passed to
        ``compile`` in ``weighted_metrics``.

        Args:
            make_dataset: Returns a ``tf.data.Dataset`` of single records. The dataset must not be batched or repeated.
                If the dataset contains all records, every rank must get the same records in the same order.
            global_batch_size: Number of records in one step of all ranks together. With parameter servers, workers do
                separate steps. The number is then the number of records in one worker's step.
            parse: A function that is applied to each record, or None. The function is applied after the records are
                distributed, so that each rank parses only its own records.
            shuffle: Number of records in the shuffle buffer. None for no shuffling.
            seed: The seed of the shuffling. Each rank shuffles differently.
            repeat: Whether to repeat the records without end. If true, ``steps_per_epoch`` must be passed to ``fit``,
                and no weights are added.
            partition: With ``"shard"``, each record belongs to one rank, and is used once in an epoch. With
                ``"shuffle"``, every rank draws records from its own random order of all records. Several ranks may then
                use the same record in an epoch, and some records may not be used. Records are not redistributed if the
                number of ranks changes.
            remainder: The treatment of the last records, if they do not fill a batch on every rank. ``"pad"`` keeps
                these records and adds weights. ``"drop"`` drops these records. None means ``"pad"`` for elements ``(x,
                y)`` and ``(x, y, sample_weight)``, and ``"drop"`` for other elements, which cannot have weights.
            holds: The records in this process's dataset. ``"all"`` means all records. ``"host"`` means the records of
                this host, as with a ShardedByS3Key channel. ``"rank"`` means the records of this rank. If None, a
                dataset that reads channels in Pipe mode has the value of these channels. ``"all"`` is assumed for other
                datasets. If the job has a ShardedByS3Key channel that is not in Pipe mode, ``holds`` must not be None.
            resumable: Whether a training can continue within an epoch after a restart. If true, checkpoints of
                ``callbacks(checkpointer)`` record which records were consumed. After a restart, each of the remaining
                records is used once. The dataset must return the records in the same order each time. If false, an
                interrupted epoch starts over. If None, the value is True if possible. Continuing within an epoch is
                possible for channels in Pipe mode, and for datasets with a seed or without shuffling. If continuing is
                not possible, ``callbacks(checkpointer)`` prints the reason when the training begins.

        Raises:
            TypeError: ``make_dataset`` cannot be called.
            ValueError: the batch size cannot be divided among the ranks, an option is unknown, or records need weights
                but cannot have them.
            RefusedError: two options exclude each other, or ``holds`` cannot be determined.
        """
        check_maker(make_dataset)
        options = data.BatchOptions(
            parse=parse,
            shuffle=shuffle,
            seed=seed,
            repeat=repeat,
            partition=partition,
            remainder=remainder,
            holds=holds,
        )
        return self._dataset(make_dataset, global_batch_size, options, resumable)

    def _dataset(
        self, make_dataset: MakeDataset, global_batch_size: int, options: data.BatchOptions, resumable: bool | None
    ) -> Any:
        if resumable and (options.repeat or options.partition == "shuffle"):
            other = "repeat=True" if options.repeat else "partition='shuffle'"
            raise RefusedError(f"with {other}, an interrupted epoch cannot be resumed: leave out resumable=True.")
        batch_size = data.per_rank_batch(global_batch_size, self.replicas) * (self.replicas // self.size)
        self.global_batch_size = global_batch_size
        records = make_dataset()
        channels = data_partition.channels_of(records)
        self._agreement = progress = None
        options = dataclasses.replace(options, holds=data_partition.held_by(records, options.holds))
        why = "resumable=False" if resumable is False else ""
        if resumable is None:
            why = why_not(records, options, streams=bool(channels))
        if not why:
            order = options.seed
            if order is None:
                # Only rank 0 saves its seed in checkpoints, so all ranks must use rank 0's seed.
                drawn = DataProgress.any_seed()
                order = self.broadcast_object(drawn) if options.shuffle else drawn
            progress = DataProgress(
                channels,
                batch_size=batch_size,
                size=self.size,
                rank=self.rank,
                seed=order,
                # Ranks with different records may have buffers of different sizes, but only rank 0's is saved.
                shuffle=options.shuffle if options.holds == "all" else bool(options.shuffle),
                insist=bool(resumable or channels),
            )
        self.training_data.made(progress, why)
        found = data.training_shard(
            records,
            options,
            rank=self.rank,
            size=self.size,
            local_rank=self.local_rank,
            local_size=self.local_size,
            batch_size=batch_size,
            agreement=self._agree,
            progress=progress,
            even=self.replicas > self.size,
        )
        count = int(records.cardinality())
        if progress is None or count < 0 or (options.holds != "all" and self.size > 1):
            return found
        progress.batches = data.batches_of_epoch(
            count, found, size=self.size, batch_size=batch_size, remainder=options.remainder
        )
        # To divide a batch among devices, TensorFlow creates further datasets from this dataset. Therefore the class of
        # this dataset must not be changed, as sized() would do.
        return data.sized(found, progress.batches) if self.replicas == self.size else found

    def _agree(self) -> step_alignment.Agreement:
        self._agreement = step_alignment.agree(self.collectives, self.host)
        return self._agreement

    @property
    def epoch_weight(self) -> float:
        """Return the weight of this rank's metrics in the mean over the ranks.

        If the ranks' numbers of records may differ, the weight is the number of this rank's records in the epoch.
        Otherwise the weight is 1.
        """
        return float(self._agreement.records) if self._agreement is not None else 1.0

    def steps_per_epoch(
        self, make_dataset: MakeDataset, *, global_batch_size: int, records: int | None = None
    ) -> int | None:
        """Return the value of ``steps_per_epoch`` for ``fit``. With parameter servers, datasets have no end, and the
        value is a number of steps. Otherwise the value is None.

        Args:
            make_dataset: Returns the dataset, as for :meth:`dataset`. If the dataset does not know its number of
                records, all records are read to count them.
            global_batch_size: Number of records in one step, as for :meth:`dataset`.
            records: Number of records. If None, the records are counted.
        """
        return None

    # --- training ---

    def fit(
        self,
        model: Any,
        make_dataset: MakeDataset,
        *,
        global_batch_size: int,
        epochs: int,
        callbacks: Sequence[Any] = (),
        checkpointer: Any = None,
        validation: MakeDataset | None = None,
        validation_holds: str | None = None,
        on_resize: str = "scale_rate",
        commit_every: int | None = None,
        on_reset: Listener | None = None,
        parse: Parse | None = None,
        shuffle: int | None = None,
        seed: int | None = None,
        verbose: Any = None,
        **options: Any,
    ) -> list[dict[str, float]]:
        """Run ``model.fit`` with the results of :meth:`dataset` and :meth:`callbacks`. In an elastic job, also continue
        when ranks join or leave.

        When ranks join or leave, the training normally continues from the current step. If a rank has failed, the
        training continues from the last commit, which is a copy of the training's state in memory. The remaining
        records of the epoch are redistributed, so that each record is used once in the epoch. Only the records of steps
        that a failure has undone are used again. The order of the records depends only on the seed and the epoch. If
        the job is not elastic, ``on_resize``, ``commit_every`` and ``on_reset`` have no effect.

        Args:
            model: A built and compiled model, with an optimizer of :meth:`optimizer`.
            make_dataset: Returns the dataset, as for :meth:`dataset`. In an elastic job, the dataset must contain all
                records, in the same order on every rank.
            global_batch_size: Number of records in one step of all ranks together. In an elastic job, this number is
                for the planned number of ranks.
            epochs: Number of epochs.
            callbacks: Additional callbacks for ``fit``.
            checkpointer: A :class:`container.checkpoint.Checkpointer` that saves the training and restores it after a
                restart. None to save nothing.
            validation: Returns a dataset of single records, on which the model is evaluated after each epoch. None for
                no evaluation.
            validation_holds: Which records this process's dataset for the evaluation has, as ``holds`` of
                :meth:`evaluate`.
            on_resize: The reaction to a change of the number of ranks. With ``"scale_rate"``, each rank keeps its batch
                size, and the learning rate is scaled with the number of ranks. With ``"keep_global_batch"``, the global
                batch size and the learning rate remain the same. If the global batch cannot be divided evenly, each
                rank's part is weighted by the part's number of records. If elements cannot have weights (see
                :meth:`dataset`), the global batch is reduced to the next size that can be divided evenly.
            commit_every: Number of steps between two commits of the training's state to memory. If None, the number is
                derived from the cost of a commit and from past failures.
            on_reset: A function that is called on every rank after each new rendezvous of the ranks, or None.
            parse: A function that is applied to each record, as for :meth:`dataset`. The function is also applied to
                the records for the evaluation.
            shuffle: Number of records in the shuffle buffer, as for :meth:`dataset`.
            seed: The seed of the shuffling, as for :meth:`dataset`.
            verbose: The verbosity, as for ``model.fit``. If None, rank 0 prints one line for each epoch.
            options: Other options of :meth:`dataset`.

        Returns:
            A list with a dict for each epoch. The dict has the values that Keras logged, by name. In an elastic job,
            the list contains only the epochs, or parts of epochs, that this rank has finished.
        """
        dataset = self.dataset(
            make_dataset, global_batch_size=global_batch_size, parse=parse, shuffle=shuffle, seed=seed, **options
        )
        found = model.fit(
            dataset,
            steps_per_epoch=self.steps_per_epoch(make_dataset, global_batch_size=global_batch_size),
            epochs=epochs,
            callbacks=[
                *self.callbacks(
                    checkpointer, validation=validation, validation_holds=validation_holds, validation_parse=parse
                ),
                *callbacks,
            ],
            verbose=(2 if self.is_chief else 0) if verbose is None else verbose,
            **data.no_shuffling(model),
        )
        names = list(found.history)
        return [
            {name: float(found.history[name][epoch]) for name in names if epoch < len(found.history[name])}
            for epoch in range(len(found.epoch))
        ]

    def callbacks(
        self,
        checkpointer: Any = None,
        *,
        warmup_epochs: float = 0,
        validation: MakeDataset | None = None,
        validation_holds: str | None = None,
        validation_parse: Parse | None = None,
        validation_batch_size: int = EVALUATION_BATCH,
        report: bool = True,
    ) -> list[Any]:
        """Return the callbacks for ``fit``, for tf_keras or Keras 3.

        The callbacks send rank 0's weights to all ranks. After the first steps, the callbacks compare the weights of
        all ranks, and raise an error if the weights differ. The callbacks average the logged values over the ranks, and
        report phases and metrics to the job.

        Args:
            checkpointer: A :class:`container.checkpoint.Checkpointer` that saves the training and restores it after a
                restart. None to save nothing.
            warmup_epochs: Number of epochs in which the learning rate rises from the rate for one rank to the rate for
                all ranks. A warm-up has an effect only with synchronous strategies.
            validation: Returns a dataset, as for :meth:`dataset`, on which the model is evaluated after each epoch.
                None for no evaluation.
            validation_holds: The records in this process's dataset for the evaluation, as ``holds`` of
                :meth:`evaluate`.
            validation_parse: A function that is applied to each record of the dataset for the evaluation, or None.
            validation_batch_size: Number of records in a batch of the dataset for the evaluation.
            report: Whether to report the values that Keras logs for each epoch as metrics.

        Raises:
            ValueError: an option is out of range.
            RefusedError: ``validation_holds`` is needed, because the job has files that differ between hosts.
        """
        validate = None
        if validation is not None:
            make = validation
            # here, and not only at the end of the first epoch
            if validation_holds is not None or data_partition.sharded_files(os.environ):
                data_partition.held_by(make() if validation_holds is None else None, validation_holds)

            def validate(model: Any) -> Mapping[str, float]:
                return self.evaluate(
                    model, make, batch_size=validation_batch_size, parse=validation_parse, holds=validation_holds
                )

        return callbacks_for(
            self, checkpointer=checkpointer, warmup_epochs=warmup_epochs, validate=validate, report=report
        )

    def evaluate(
        self,
        model: Any,
        make_dataset: MakeDataset,
        *,
        batch_size: int = EVALUATION_BATCH,
        parse: Parse | None = None,
        holds: str | None = None,
    ) -> dict[str, float]:
        """Evaluate a compiled model on all records, and count each record once. All ranks must call this method, and
        all ranks get the same metrics.

        For metrics that are not means over records (such as AUC), the result is the mean of the ranks' values.

        Args:
            model: The model.
            make_dataset: Returns the dataset, as for :meth:`dataset`. Each call must return a dataset with the same
                number of records. Only channels in Pipe mode may have a different number in each call, because their
                records are not counted in advance.
            batch_size: Number of records in a rank's batch.
            parse: A function that is applied to each record, or None.
            holds: The records in this process's dataset, as for :meth:`dataset`.

        Raises:
            DistributedError: there are no records.
            RefusedError: ``holds`` cannot be determined.
        """
        records = make_dataset()
        streams = bool(data_partition.channels_of(records))
        count = None if streams else self._count(make_dataset)
        parts = {"all": (self.rank, self.size), "host": (self.local_rank, self.local_size), "rank": (0, 1)}
        rank, size = parts[data_partition.held_by(records, holds)]
        batches = data.evaluation_shard(
            records,
            rank=rank,
            size=size,
            batch_size=self._evaluation_batch(batch_size, count),
            parse=parse,
        )
        part = evaluating.EvaluationPart(batches, None if count is None else len(range(rank, count, size)))
        metrics: Mapping[str, float] = {}
        if part.dataset is not None:
            with warnings.catch_warnings():
                # the end of the data is expected
                warnings.filterwarnings("ignore", message="Your input ran out of data")
                metrics = model.evaluate(part.dataset, return_dict=True, verbose=0, callbacks=[SignsOfLife()])
        return evaluating.mean_over_ranks(self.collectives, metrics, part.records)

    def _evaluation_batch(self, batch_size: int, records: int | None) -> int:
        """Return the size of a rank's batch for evaluation.

        Args:
            batch_size: The requested number of records in a batch.
            records: Total number of records, or None if unknown.
        """
        return batch_size

    def _count(self, make_dataset: MakeDataset) -> int:
        key = (make_dataset, self.size)
        if key not in self._counts:
            self._counts[key] = data.count(make_dataset())
        return self._counts[key]

    # --- collective operations ---

    def broadcast(self, model: Any) -> None:
        """Send rank 0's weights and optimizer variables to every rank. This method is for training loops without
        :meth:`callbacks`.

        Args:
            model: A built model, or a list of variables.
        """
        variables = list(model) if isinstance(model, list | tuple) else _variables(model)
        values = self.collectives.broadcast_arrays([keras_compat.value(variable) for variable in variables])
        for variable, found in zip(variables, values, strict=True):
            variable.assign(found)

    def check_weights(self, model: Any) -> None:
        """Compare the trainable weights of all ranks. This method is for training loops without :meth:`callbacks`.

        Args:
            model: A built model, or a list of variables.

        Raises:
            WeightsDifferError: on every rank, if the weights differ.
        """
        if isinstance(model, list | tuple):
            Guard(self.collectives).check(model)
        else:
            cause = optimizers.why_apart(model.optimizer) if getattr(model, "optimizer", None) is not None else ""
            Guard(self.collectives).check(model.trainable_variables, cause=cause)

    # --- results ---

    def export(self, model: Any, directory: str | os.PathLike[str] | None = None) -> Path | None:
        """Write the model as a SavedModel for TensorFlow Serving. Only rank 0 writes.

        Args:
            model: A built model.
            directory: The parent folder: the model is written to ``<directory>/1``. None for ``$SM_MODEL_DIR``.

        Returns:
            The folder of the model. None on other ranks.

        Raises:
            DistributedError: ``directory`` is None, and SM_MODEL_DIR is not set.
        """
        folder = self._export_folder(directory)
        return _write_saved_model(self._local(model), folder) if folder is not None else None

    def _local(self, model: Any) -> Any:
        """Return a model whose variables are in this process: the model, or a copy if there are parameter servers."""
        return model


def check_maker(make_dataset: Any) -> None:
    if not callable(make_dataset):
        raise TypeError(
            f"dataset() takes a function that returns the tf.data.Dataset, such as lambda: dataset; got "
            f"a {type(make_dataset).__name__}."
        )


def _variables(model: Any) -> list[Any]:
    found = list(model.variables)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        known = {id(variable) for variable in found}
        found += [variable for variable in keras_compat.optimizer_variables(optimizer) if id(variable) not in known]
    return found


def _write_saved_model(model: Any, directory: Path) -> Path:
    """Write the model into the folder ``directory / "1"``, and return this folder. The files are first written to a
    temporary folder, which is then renamed, so that programs that serve the model never read incomplete files.
    """
    staged = directory / f".staged-{_VERSION}-{os.getpid()}"
    target = directory / _VERSION
    directory.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(staged, ignore_errors=True)
    if keras_compat.keras_of(model) is Keras.THREE:
        model.export(str(staged), verbose=False)
    else:
        import tensorflow as tf

        tf.saved_model.save(model, str(staged))
    if target.exists():
        shutil.rmtree(target)
    staged.rename(target)
    return target
