"""The cluster as a training script sees it: the same for every strategy."""

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

from container.contract.detection import Surroundings
from container.contract.errors import RefusedError
from container.distributed.core import data_partition, step_alignment
from container.distributed.core.notice import Listener
from container.distributed.core.ranks import Ranks
from container.distributed.core.weight_check import Guard
from container.distributed.tensorflow import data, evaluating, keras_compat, optimizers
from container.distributed.tensorflow.callbacks import SignsOfLife, callbacks_for
from container.distributed.tensorflow.collectives import TensorCollectives
from container.distributed.tensorflow.data import MakeDataset, Parse
from container.distributed.tensorflow.keras_compat import Keras
from container.distributed.tensorflow.progress import DataProgress, TrainingData, why_not

#: The name TensorFlow Serving expects for the first version of a model.
_VERSION = "1"

EVALUATION_BATCH = 256


class Cluster(Ranks[TensorCollectives]):
    """The processes that train together; :func:`container.distributed.init` makes it.

    This class serves one process and the synchronous strategies;
    :class:`container.distributed.tensorflow.parameter_servers.ParameterServerCluster` the other.

    Args:
        surroundings: What the environment said.
        collectives: How the ranks talk.

    Attributes:
        global_batch_size: That of the last :meth:`dataset`.
        tf_strategy: TensorFlow's own ``tf.distribute`` strategy behind it, or None.
    """

    def __init__(self, surroundings: Surroundings, collectives: TensorCollectives, *, tf_strategy: Any = None) -> None:
        super().__init__(surroundings, collectives)
        self.global_batch_size: int | None = None
        self.tf_strategy = tf_strategy
        #: Where the data of the training is.
        self.training_data = TrainingData()
        self._agreement: step_alignment.Agreement | None = None
        self._counts: dict[tuple[Any, int], int] = {}

    @property
    def replicas(self) -> int:
        """How many copies of the model compute gradients in each step: :attr:`size`, or the devices of a process."""
        return self.size

    # --- the model ---

    def scope(self) -> AbstractContextManager[Any]:
        """Return the context in which the model must be made and compiled."""
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

    def _refuse_reduction(self, compression: str | None, op: str, where: str) -> None:
        """Refuse options of :meth:`optimizer` where gradients are not reduced over ranks.

        Raises:
            RefusedError: one is given.
        """
        if compression not in (None, "none") or op != "average":
            asked = f"compression={compression!r}" if compression not in (None, "none") else f"op={op!r}"
            raise RefusedError(f"{asked} is not available {where}")

    def scale(self, learning_rate: float, *, op: str = "average") -> float:
        """Return the learning rate for all ranks together: times their number, where they make each step together.

        Args:
            learning_rate: The rate that suits one process.
            op: As for :meth:`optimizer`: only averages are scaled. Adasum adapts by itself, and a sum already grows
                with the ranks.

        Raises:
            TypeError: it is not a number (a schedule has its own numbers to scale).
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
        """Return this process's share of the training data, in batches, for ``fit``.

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
                The records must come in the same order each time. None: wherever that can be, which is with a seed or
                without shuffling, and for channels in Pipe mode; elsewhere an interrupted epoch begins anew, and
                ``callbacks(checkpointer)`` says why when the training begins.

        Raises:
            TypeError: ``make_dataset`` cannot be called.
            ValueError: a batch size that cannot be divided, an unknown option, or records that cannot have weights.
            RefusedError: options that exclude each other.
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
        why = "resumable=False" if resumable is False else ""
        if resumable is None:
            why = why_not(records, options, streams=bool(channels))
        if not why:
            order = options.seed
            if order is None:
                # Of the ranks only rank 0 saves, and its order must be that of all.
                drawn = DataProgress.any_seed()
                order = self.broadcast_object(drawn) if options.shuffle else drawn
            progress = DataProgress(
                channels,
                batch_size=batch_size,
                size=self.size,
                rank=self.rank,
                seed=order,
                shuffled=bool(options.shuffle),
                insist=bool(resumable or channels),
            )
        self.training_data.made(progress, why)
        options = dataclasses.replace(options, holds=data_partition.held_by(records, options.holds))
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
        # What divides a batch among devices makes datasets of this one.
        return data.sized(found, progress.batches) if self.replicas == self.size else found

    def _agree(self) -> step_alignment.Agreement:
        self._agreement = step_alignment.agree(self.collectives, self.host)
        return self._agreement

    @property
    def epoch_weight(self) -> float:
        """How much this rank's metrics of an epoch count: by its records, where the ranks have not equally many."""
        return float(self._agreement.records) if self._agreement is not None else 1.0

    def steps_per_epoch(
        self, make_dataset: MakeDataset, *, global_batch_size: int, records: int | None = None
    ) -> int | None:
        """Return what ``fit`` needs with parameter servers, where a dataset has no end; None otherwise.

        Args:
            make_dataset: As for :meth:`dataset`. Its records are counted, by reading them if it does not know.
            global_batch_size: As for :meth:`dataset`.
            records: How many there are, if you know.
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
        on_resize: str = "scale_rate",
        commit_every: int | None = None,
        on_reset: Listener | None = None,
        parse: Parse | None = None,
        shuffle: int | None = None,
        seed: int | None = None,
        verbose: Any = None,
        **options: Any,
    ) -> list[dict[str, float]]:
        """Run ``model.fit`` with :meth:`dataset` and :meth:`callbacks`, and with what an elastic job needs.

        In an elastic job the ranks go on when some of them come or go: from the last commit if one died, from where
        they are otherwise. What is left of the epoch is dealt out anew, so that each record counts once per epoch in
        the training that survives; in which order is a function of seed and epoch alone. Under other strategies
        ``on_resize``, ``commit_every`` and ``on_reset`` are without effect.

        Args:
            model: A built and compiled model, its optimizer one of :meth:`optimizer`.
            make_dataset: As for :meth:`dataset`; in an elastic job all records, in the same order on every rank.
            global_batch_size: Records in one step of all ranks; in an elastic job of those that it was planned for.
            epochs: How many.
            callbacks: More callbacks for ``fit``.
            checkpointer: A :class:`container.checkpoint.Checkpointer`, to save and to resume.
            validation: Returns a dataset of single records to evaluate on after each epoch.
            on_resize: ``"scale_rate"``: each rank keeps its batch size, and the learning rate grows and shrinks with
                the ranks. ``"keep_global_batch"``: the rate stays, and the ranks share the same global batch. Where it
                cannot be divided evenly, shares are weighed by their records; elements that cannot have weights (see
                :meth:`dataset`) make the largest batch below that can.
            commit_every: Steps between commits to memory; None chooses by what a commit costs and what has failed.
            on_reset: Called on every rank whenever the ranks have met anew.
            parse: As for :meth:`dataset`; for validation too.
            shuffle: As for :meth:`dataset`.
            seed: As for :meth:`dataset`.
            verbose: As for ``model.fit``; None for one line an epoch on rank 0.
            options: Others of :meth:`dataset`.

        Returns:
            What Keras logged for each epoch; in an elastic job for those, or parts of them, that this rank finished.
        """
        dataset = self.dataset(
            make_dataset, global_batch_size=global_batch_size, parse=parse, shuffle=shuffle, seed=seed, **options
        )
        found = model.fit(
            dataset,
            steps_per_epoch=self.steps_per_epoch(make_dataset, global_batch_size=global_batch_size),
            epochs=epochs,
            callbacks=[
                *self.callbacks(checkpointer, validation=validation, validation_parse=parse),
                *callbacks,
            ],
            verbose=(2 if self.is_chief else 0) if verbose is None else verbose,
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
        validation_parse: Parse | None = None,
        validation_batch_size: int = EVALUATION_BATCH,
        report: bool = True,
    ) -> list[Any]:
        """Return the callbacks for ``fit``, for either Keras.

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
        make_dataset: MakeDataset,
        *,
        batch_size: int = EVALUATION_BATCH,
        parse: Parse | None = None,
    ) -> dict[str, float]:
        """Evaluate a compiled model over all records, each counted once. All ranks must call it; all get the same.

        Metrics that are no means over records (AUC, for one) become the mean of the ranks' values.

        Args:
            model: The model.
            make_dataset: As for :meth:`dataset`; the number of its records must stay the same, but for channels in
                Pipe mode, which are read once.
            batch_size: Records of a rank's batch.
            parse: Applied to each record.

        Raises:
            DistributedError: there are no records.
        """
        records = make_dataset()
        streams = bool(data_partition.channels_of(records))
        count = None if streams else self._count(make_dataset)
        # A channel that is ShardedByS3Key gives each rank records of its own.
        own = streams and data_partition.held_by(records, None) != "all"
        batches = data.evaluation_shard(
            records,
            rank=0 if own else self.rank,
            size=1 if own else self.size,
            batch_size=self._evaluation_batch(batch_size, count),
            parse=parse,
        )
        part = evaluating.EvaluationPart(batches, None if count is None else len(range(self.rank, count, self.size)))
        metrics: Mapping[str, float] = {}
        if part.dataset is not None:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Your input ran out of data")  # it is read to its end
                metrics = model.evaluate(part.dataset, return_dict=True, verbose=0, callbacks=[SignsOfLife()])
        return evaluating.mean_over_ranks(self.collectives, metrics, part.records)

    def _evaluation_batch(self, batch_size: int, records: int | None) -> int:
        """Return the size of a rank's batch for evaluation.

        Args:
            batch_size: What was asked for.
            records: How many there are in all; None where that is not known.
        """
        return batch_size

    def _count(self, make_dataset: MakeDataset) -> int:
        key = (make_dataset, self.size)
        if key not in self._counts:
            self._counts[key] = data.count(make_dataset())
        return self._counts[key]

    # --- together ---

    def broadcast(self, model: Any) -> None:
        """Give every rank rank 0's weights and optimizer state, for loops without :meth:`callbacks`.

        Args:
            model: A built model, or a list of variables.
        """
        variables = list(model) if isinstance(model, list | tuple) else _variables(model)
        values = self.collectives.broadcast_arrays([keras_compat.value(variable) for variable in variables])
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
        folder = self._export_folder(directory)
        return _write_saved_model(self._local(model), folder) if folder is not None else None

    def _local(self, model: Any) -> Any:
        """Return the model with its variables in this process."""
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
    """Write to a folder beside, then put it in place: what serves the folder never sees half a model."""
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
