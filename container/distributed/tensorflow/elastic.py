"""Train while ranks join and leave. Each record is used once in each epoch.

All ranks read the records in the same order, which depends only on the seed and the epoch. The records are assigned to
the ranks in turn (:mod:`container.distributed.core.epoch_sharding`). Therefore one number describes which records have
been consumed. A commit, which is a copy of the training's state in memory, contains this number and the weights. After
a change of the ranks, all ranks continue with the committed number and weights, and the remaining records of the epoch
are redistributed. For a channel in Pipe mode, the epoch's stream is read again from its beginning.

The implementation uses Horovod's ``horovod.common.elastic`` (version 0.28).
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from container.checkpoint import keras_compat
from container.checkpoint.state import ArraySlot, state_of
from container.contract import events, variables
from container.contract.detection import Surroundings
from container.contract.errors import DistributedError, RefusedError
from container.contract.names import unknown
from container.distributed.core import data_partition
from container.distributed.core.epoch_sharding import Dealing
from container.distributed.core.notice import Listener, notice, telling_end
from container.distributed.tensorflow import data, padding
from container.distributed.tensorflow.callbacks import InjectFaults, Synchronize
from container.distributed.tensorflow.cluster import Cluster
from container.distributed.tensorflow.collectives import HorovodTensors
from container.distributed.tensorflow.committing import Commits
from container.distributed.tensorflow.data import MakeDataset, Parse
from container.distributed.tensorflow.host_updates import HostUpdates
from container.distributed.tensorflow.progress import in_order_of

#: What to adapt when the number of ranks changes: the learning rate or the batches.
ON_RESIZE = ("scale_rate", "keep_global_batch")
#: If a checkpoint was saved within an epoch, its position has this key for the number of consumed records.
_POSITION = "elastic_records"


def order_seed(seed: int | None, epoch: int) -> int:
    """Return the seed for the order of the records in an epoch. The seed does not depend on the number of ranks."""
    return ((seed or 0) * 1_000_003 + epoch) & 0x7FFFFFFF


class TrainingState:
    """The state that a commit stores: the variables of the model and its optimizer, and the position of the training.

    The class has the methods of Horovod's ``State``. :func:`horovod_state` returns an object that is an instance of
    both classes.

    Args:
        cluster: The cluster.
        model: The model, which must be built and compiled.

    Attributes:
        records: Number of records in an epoch. -1 until rank 0 has counted the records.
        epoch: Number of finished epochs.
        position: Number of records of the current epoch that have been consumed.
        step: Number of finished steps.
        size: Number of ranks for which the optimizer's learning rate is meant.
        stop: Whether a callback has ended the training.
        restored: Whether the ranks have already tried to restore a checkpoint from the disk.
        check_every: Number of steps between two checks for changes of the hosts. If 0, the ranks check after each step,
            with a separate message from rank 0.
        commit_every: Number of steps between two commits.
    """

    _OWN = (
        "records", "epoch", "position", "step", "size", "restored", "stop", "check_every", "commit_every",
    )  # fmt: skip

    def __init__(self, cluster: Cluster, model: Any) -> None:
        self._cluster = cluster
        self._state = state_of(model)
        self.records = -1
        self.epoch = self.position = self.step = 0
        self.size = cluster.size
        self.restored = self.stop = False
        self.check_every = self.commit_every = 1
        self.began = time.monotonic()
        self._saved: list[np.ndarray[Any, Any]] = []
        self._saved_own: dict[str, Any] = {}
        self.failures = 0
        #: The highest step reached; more than ``step`` while lost steps are repeated.
        self.furthest = 0
        #: The number of the last checkpoint that any host has saved.
        self.saved = 0
        #: Updates ``step`` and ``position`` to the last finished step.
        self.settle: Listener = lambda: None

    def _slots(self) -> list[ArraySlot]:
        return [slot for group in self._state.groups().values() for slot in group]

    def save(self) -> None:
        """Copy the state into memory. Such a copy is called a commit."""
        slots = self._slots()
        if len(self._saved) != len(slots):
            self._saved = [np.array(slot.read()) for slot in slots]
        else:
            for kept, slot in zip(self._saved, slots, strict=True):
                np.copyto(kept, slot.read())
        self._saved_own = {name: getattr(self, name) for name in self._OWN}

    def restore(self) -> None:
        """Restore the state of the last commit. The steps after this commit are then repeated."""
        self.settle()
        lost = self.step - int(self._saved_own.get("step", 0))
        if self._saved:
            for slot, kept in zip(self._slots(), self._saved, strict=True):
                slot.assign(kept)
            for name, value in self._saved_own.items():
                setattr(self, name, value)
        self.failures += 1
        events.emit("restored", epoch=self.epoch, step=self.step, position=self.position, steps_lost=lost)

    def sync(self) -> None:
        """Send rank 0's state to every rank, and commit the state."""
        collectives = self._cluster.collectives
        own = collectives.broadcast_object({name: getattr(self, name) for name in (*self._OWN, "furthest", "saved")})
        for name, value in own.items():
            setattr(self, name, value)
        slots = self._slots()
        values = collectives.broadcast_arrays([np.asarray(slot.read()) for slot in slots])
        for slot, value in zip(slots, values, strict=True):
            slot.assign(value)
        self.save()


def horovod_state(cluster: Cluster, model: Any) -> Any:
    """Return a :class:`TrainingState` that can be passed to Horovod's ``elastic.run``."""
    from horovod.common.elastic import State
    from horovod.common.exceptions import HostsUpdatedInterrupt

    assert isinstance(cluster.collectives, HorovodTensors) and cluster.collectives.host_updates is not None
    collectives: HorovodTensors = cluster.collectives
    host_updates: HostUpdates = cluster.collectives.host_updates
    host_updates.prepare()

    class ElasticState(TrainingState, State):
        def __init__(self) -> None:
            TrainingState.__init__(self, cluster, model)
            self._last_updated_timestamp = self._newest = 0
            State.__init__(self, bcast_object=cluster.collectives.broadcast_object, get_rank=lambda: cluster.rank)

        def check_host_updates(self) -> None:
            """Check for changes of the hosts as Horovod's method does, but with only one broadcast of numbers.

            Horovod's method takes several times as long, because it broadcasts a pickled tuple twice.
            """
            self._read_messages()
            before, self._last_updated_timestamp = collectives.broadcast_numbers(
                [self._last_updated_timestamp, self._newest], name="hosts"
            )
            if self._last_updated_timestamp > before:
                raise HostsUpdatedInterrupt(False)

        def end_epoch(self, stop: bool) -> tuple[bool, bool]:
            """Send the result of rank 0's callbacks to all ranks at the end of an epoch: whether to stop, and the
            learning rate.

            Args:
                stop: Whether this rank's callbacks stop the training.

            Returns:
                Whether rank 0's callbacks stop the training, and whether hosts have joined or will leave soon.
            """
            self._read_messages()
            rate = keras_compat.learning_rate(model.optimizer)
            bits = np.float64(math.nan if rate is None else rate).view(np.int64)
            told, bits_of_0, before, self._last_updated_timestamp = collectives.broadcast_numbers(
                [stop, int(bits), self._last_updated_timestamp, self._newest], name="epoch"
            )
            if rate is not None and bits_of_0 != bits:
                keras_compat.set_learning_rate(model.optimizer, float(np.int64(bits_of_0).view(np.float64)))
            return bool(told), self._last_updated_timestamp > before

        def look(self) -> None:
            """Check for changes of the hosts.

            If the last step's gradients were reduced together with the flag for such changes, use the flag. Otherwise
            check as :meth:`check_host_updates` does.

            Raises:
                HostsUpdatedInterrupt: hosts have joined, or will leave soon.
            """
            found = host_updates.look() if self.check_every else None
            if found is None:
                self.check_host_updates()
            elif found:
                raise HostsUpdatedInterrupt(False)
            elif self._read_messages() and cluster.is_chief:
                host_updates.send()

        def _read_messages(self) -> bool:
            """Read the messages about changes of the hosts. Return whether there is a change about which the ranks
            have not been informed yet.
            """
            while not self._host_messages.empty():
                self._newest = max(self._newest, int(self._host_messages.get()[0]))
            return self._newest > self._last_updated_timestamp

        def sync(self) -> None:
            with telling_losses():
                super().sync()

        def restore(self) -> None:
            if notice.came:
                # SIGTERM was sent to all ranks. Rank 0 has saved the training and exited, so no rendezvous will follow.
                telling_end("rank 0 has ended")
            super().restore()

        def reset(self) -> None:
            # Collective operations are numbered: a rank that joins begins with the first number.
            collectives.restart()
            # The rendezvous has taken all host updates so far into account.
            self._last_updated_timestamp = self._newest = max(self._last_updated_timestamp, self._newest)
            host_updates.forget()
            events.rank = cluster.rank

    return ElasticState()


@contextlib.contextmanager
def telling_losses() -> Iterator[None]:
    """Convert TensorFlow's UnknownError about a lost rank to the exception that ``hvd.elastic.run`` handles. Convert
    any other UnknownError to a RuntimeError.

    Without this conversion, Horovod 0.28 detects a lost rank only during the training itself. Even then, TensorFlow's
    error message must contain the name of one of Horovod's operations. Operations of an optimizer and other collective
    operations have other names. After an UnknownError without such a name, ``hvd.elastic.run`` would return without an
    error, as if the training was complete. If the error occurred while ranks receive rank 0's state, the script would
    fail.
    """
    import tensorflow as tf
    from horovod.common.exceptions import HorovodInternalError

    try:
        yield
    except tf.errors.UnknownError as error:
        if any(word in error.message.lower() for word in ("horovod", "gloo")):
            raise HorovodInternalError(error.message) from error
        raise RuntimeError(error.message) from error


class Lasting:
    """A wrapper that calls a callback as in one ``fit`` for the whole training, although each epoch is trained by a
    separate ``fit``.

    Args:
        inner: The callback to wrap.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._begun = False

    def on_train_begin(self, logs: Any = None) -> None:
        """Call the callback's ``on_train_begin`` only at the beginning of the first ``fit``."""
        if not self._begun:
            self._begun = True
            self._inner.on_train_begin(logs)
        # Methods that are called after each step become attributes, which makes their lookup fast.
        self.on_train_batch_begin = self._inner.on_train_batch_begin
        self.on_train_batch_end = self._inner.on_train_batch_end

    def on_train_end(self, logs: Any = None) -> None:
        """Do nothing. The callback's ``on_train_end`` is called by :meth:`finish`."""

    def finish(self) -> None:
        """Call the callback's ``on_train_end`` at the end of the whole training."""
        if self._begun:
            self._inner.on_train_end({})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def of_epoch(records: Any, epoch: int) -> Any:
    """Select an epoch in all channels in Pipe mode that a dataset reads. Return the dataset.

    The dataset then begins with the first record of this epoch.
    """
    for channel in data_partition.channels_of(records):
        channel.choose(epoch)
    return records


def _end_epoch(model: Any, callbacks: Sequence[Any], epoch: int) -> bool:
    """End an epoch whose remaining records are too few for a step. Call the callbacks' ``on_epoch_end``.

    Returns:
        Whether a callback stops the training.
    """
    model.stop_training = False
    for callback in callbacks:
        callback.set_model(model)
        callback.on_epoch_end(epoch, {})
    return bool(model.stop_training)


def remaining(records: Any, *, shuffle: int | None, seed: int | None, epoch: int, position: int) -> Any:
    """Return the remaining records of an epoch, in the order of the epoch.

    Args:
        records: All records, in the same order on every rank.
        shuffle: Number of records in the shuffle buffer. None for no shuffling.
        seed: The seed of the shuffling.
        epoch: The number of the epoch, from 0.
        position: Number of records of the epoch that have been consumed.
    """
    if shuffle:
        import tensorflow as tf

        count, whole = records.cardinality(), records
        records = (
            tf.data.Dataset.from_tensors(0)
            .flat_map(lambda _: in_order_of(whole, shuffle, order_seed(seed, epoch)))
            .with_options(whole.options())
        )
        if count >= 0:
            records = records.apply(tf.data.experimental.assert_cardinality(count))
    return records.skip(position) if position else records


class ElasticCluster(Cluster):
    """The cluster of an elastic job, in which the number of ranks can change. See :meth:`fit`.

    Args:
        surroundings: The cluster as detected from the environment variables.
        collectives: The collective operations of the ranks.
        planned: Number of ranks for which the job's batch size and learning rate are meant.
        late: Whether other ranks were already training when this process was assigned its rank.
    """

    def __init__(
        self, surroundings: Surroundings, collectives: HorovodTensors, *, planned: int, late: bool = False
    ) -> None:
        super().__init__(surroundings, collectives)
        self._horovod = collectives
        self._planned = planned
        self._late = late
        events.rank = self.rank

    @property
    def _scale_factor(self) -> int:
        return self._planned

    def broadcast_numbers(self, numbers: Sequence[int], *, name: str) -> list[int]:
        """Return rank 0's numbers on every rank. See :meth:`HorovodTensors.broadcast_numbers`."""
        return self._horovod.broadcast_numbers(numbers, name=name)

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
        """Train a model while ranks join, leave or fail. See :meth:`container.distributed.Cluster.fit`."""
        if on_resize not in ON_RESIZE:
            raise ValueError(unknown("on_resize", on_resize, ON_RESIZE))
        if commit_every is not None and (
            isinstance(commit_every, bool) or not isinstance(commit_every, int) or commit_every < 1
        ):
            raise ValueError(f"commit_every must be a number of steps, at least 1, or None; got {commit_every!r}.")
        if any(channel.holds != "all" for channel in data_partition.channels_of(make_dataset())):
            raise RefusedError(
                "elastic training needs all records on every rank, because each resize redistributes the records. "
                "Give the channel distribution='FullyReplicated'."
            )
        import horovod.tensorflow as hvd
        from horovod.common.exceptions import HostsUpdatedInterrupt

        initial = self._planned
        per_rank = data.per_rank_batch(global_batch_size, initial if on_resize == "scale_rate" else 1)
        batching = data.BatchOptions(parse=parse, shuffle=None, seed=seed, repeat=False, **options)
        history: list[dict[str, float]] = []
        lasting = [Lasting(callback) for callback in callbacks]
        keras_compat.build_optimizer(model.optimizer, model.trainable_variables)
        state = horovod_state(self, model)
        state.size = initial
        validate = None if validation is None else lambda: of_epoch(validation(), state.epoch)
        state.register_reset_callbacks([on_reset] if on_reset is not None else [])

        def train(state: Any) -> None:
            events.rank = self.rank
            self.faults.passed(state.furthest)
            if state.records < 0:
                self._count_records(make_dataset, state)
            if not state.restored:
                self._restore(model, checkpointer, state)
            self._late = False  # now this rank has the training's state

            def write(**options: Any) -> None:
                checkpointer.count_from(state.saved)
                checkpointer.save(model, epoch=state.epoch, step=state.step, **options)
                state.saved += 1  # counted on every rank: any rank may become rank 0, on a host with other checkpoints

            def save() -> None:
                write(position={_POSITION: state.position}, wait=True)

            self._follow_size(model, state, on_resize)
            per_step = per_rank * self.size if on_resize == "scale_rate" else max(per_rank, self.size)
            commits = Commits(self, state, every=commit_every, save=None if checkpointer is None else save)
            # Each epoch is a separate fit, whose step numbers start anew: faults are injected by the step numbers of
            # the state.
            own = self.callbacks(validation=validate, validation_holds=validation_holds, validation_parse=parse)
            for callback in own:
                if isinstance(callback, Synchronize):
                    callback.watches_the_end = False
            ours = [Lasting(callback) for callback in own if not isinstance(callback, InjectFaults)]
            while state.epoch < epochs and not state.stop:
                of_this = of_epoch(make_dataset(), state.epoch)
                shard = data.training_shard(
                    remaining(of_this, shuffle=shuffle, seed=seed, epoch=state.epoch, position=state.position),
                    batching,
                    rank=self.rank,
                    size=self.size,
                    local_rank=self.local_rank,
                    local_size=self.local_size,
                    batch_size=per_step // self.size,
                    left_over=per_step % self.size,
                )
                weighed = batching.remainder != "drop" and padding.weighable(shard.element_spec)
                self.global_batch_size = per_step if weighed else per_step // self.size * self.size
                dealing = Dealing(
                    records=state.records,
                    position=state.position,
                    size=self.size,
                    per_step=self.global_batch_size,
                    partial=weighed,
                )
                if dealing.steps:
                    events.emit(
                        "data", epoch=state.epoch, position=state.position, records=state.records, size=self.size
                    )
                    commits.deal(dealing)
                    found = model.fit(
                        shard,
                        steps_per_epoch=dealing.steps,
                        initial_epoch=state.epoch,
                        epochs=epochs,
                        callbacks=[*ours, *lasting, commits],
                        verbose=(2 if self.is_chief else 0) if verbose is None else verbose,
                        **data.no_shuffling(model),
                    )
                    history.append({name: float(values[-1]) for name, values in found.history.items() if values})
                    stop = commits.stop
                else:
                    stop = _end_epoch(model, lasting, state.epoch)
                # On a rank that joined late, a callback has not received the values of earlier epochs. Therefore rank
                # 0's callbacks decide.
                state.stop, changed = state.end_epoch(stop)
                state.epoch += 1
                state.position = 0
                if checkpointer is not None:
                    write(metrics=history[-1] if history else {})
                state.save()
                if changed:
                    raise HostsUpdatedInterrupt(False)
            for callback in ours:
                callback.finish()

        if checkpointer is not None:
            checkpointer.cluster = self
            notice.listen(_noted)

        def told(state: Any) -> None:
            with telling_losses():
                train(state)

        try:
            hvd.elastic.run(told)(state)
        finally:
            notice.forget(_noted)
        for callback in lasting:
            callback.finish()
        if checkpointer is not None and self.is_chief:
            checkpointer.wait()
        return history

    def _count_records(self, make_dataset: MakeDataset, state: Any) -> None:
        """Count the records on rank 0, and send the number to all ranks. The records are counted only once in a job,
        because counting again would delay all ranks.

        Raises:
            DistributedError: there are no records.
        """
        counted = data.count(of_epoch(make_dataset(), 0)) if self.is_chief else 0
        state.records = self.broadcast_object(counted)
        if not state.records:
            raise DistributedError("there are no records to train on.")

    def _restore(self, model: Any, checkpointer: Any, state: Any) -> None:
        """Restore a checkpoint from the disk. All ranks call this method together, and only once in a job.

        Raises:
            DistributedError: all ranks that had the training's state were lost before a new rank had received the
                state, and there is no checkpoint.
        """
        state.restored = True
        lost = self.broadcast_object(self._late)
        found = checkpointer.restore(model) if checkpointer is not None else None
        if lost and found is None:
            raise DistributedError(
                "all workers that had the training's state were lost before another worker had copied it, and there is "
                "no checkpoint to resume from. To save a checkpoint after each epoch, use "
                "cluster.fit(…, checkpointer=Checkpointer())."
            )
        if found is not None:
            state.saved = max(state.saved, found.serial)
            state.epoch, state.step = found.progress.epoch, found.progress.step
            # A checkpoint that was saved after SIGTERM has a position within the epoch. If the checkpoint is of a
            # training that was not elastic, the epoch starts over.
            position = found.progress.position
            state.position = int(position.get(_POSITION, 0)) if isinstance(position, dict) else 0
            if not found.rate_kept:  # the script's rate is for the planned number of ranks
                state.size = found.size
        if lost and self.is_chief:
            events.emit("state_lost", epoch=state.epoch, step=state.step, position=state.position)
        state.save()

    def _follow_size(self, model: Any, state: Any, on_resize: str) -> None:
        if state.size == self.size:
            return
        before, state.size = state.size, self.size
        if on_resize == "scale_rate":
            rate = keras_compat.learning_rate(model.optimizer)
            if rate is None:
                raise RefusedError(
                    "on_resize='scale_rate' cannot scale a learning rate schedule: give the optimizer a number, or "
                    "use on_resize='keep_global_batch'."
                )
            keras_compat.set_learning_rate(model.optimizer, rate * self.size / before)
        state.save()


def _noted() -> None:
    """Do nothing. While this function is a listener, SIGTERM does not terminate the process. The training checks
    between steps whether SIGTERM was received.
    """


def planned_size(environ: Mapping[str, str], size: int) -> int:
    """Return the number of ranks for which the job was planned. Pure.

    Return ``size`` if the environment variables do not contain this number.
    """
    text = environ.get(variables.ELASTIC_PLANNED, "")
    return int(text) if text.isdecimal() and int(text) > 0 else size
