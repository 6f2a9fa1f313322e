"""Elastic training: ranks come and go, and each record counts once per epoch in the training that survives.

All ranks read the records in one order, a function of seed and epoch alone, and take turns (:mod:`.ledger`). So the
whole ledger of what has been consumed is one number, which is committed with the weights it made. Whatever joins,
leaves or dies, the ranks go on from the committed number with the committed weights, and deal out the rest of the epoch
anew. Of a channel in Pipe mode they have the epoch's stream begin again for that.

It is built on Horovod's ``horovod.common.elastic`` (version 0.28).
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from container.checkpoint.state import ArraySlot, state_of
from container.contract import events, variables
from container.contract.detection import Surroundings
from container.contract.errors import DistributedError, RefusedError
from container.contract.names import unknown
from container.distributed.core import data_partition
from container.distributed.core.epoch_sharding import Dealing
from container.distributed.core.notice import Listener, notice, telling_end
from container.distributed.tensorflow import data, keras_compat, padding
from container.distributed.tensorflow.callbacks import InjectFaults, Synchronize
from container.distributed.tensorflow.cluster import Cluster
from container.distributed.tensorflow.collectives import HorovodTensors
from container.distributed.tensorflow.committing import Commits
from container.distributed.tensorflow.data import MakeDataset, Parse
from container.distributed.tensorflow.host_updates import HostUpdates

#: What happens to the learning rate or the batches when the number of ranks changes.
ON_RESIZE = ("scale_rate", "keep_global_batch")
#: What a checkpoint within an epoch calls the number of records that have been consumed.
_POSITION = "elastic_records"


def order_seed(seed: int | None, epoch: int) -> int:
    """Return the seed of an epoch's order, the same at any size."""
    return ((seed or 0) * 1_000_003 + epoch) & 0x7FFFFFFF


class TrainingState:
    """The state that a commit keeps: the model, its optimizer, and the position of the training.

    It has the methods of Horovod's ``State``; :func:`horovod_state` makes it one.

    Args:
        cluster: The cluster.
        model: The model, built and compiled.

    Attributes:
        records: Records of an epoch, once rank 0 has counted them; -1 before.
        epoch: Finished epochs.
        position: Records of the epoch under way that have been consumed.
        step: Steps so far.
        size: The ranks that the optimizer's learning rate is for.
        stop: Whether a callback has ended the training.
        restored: Whether a durable checkpoint has been looked for.
        check_every: Steps between looks for changed hosts; 0 to ask rank 0 after each.
        commit_every: Steps between commits.
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
        #: The last step that was made: more than ``step`` when some are trained again.
        self.furthest = 0
        #: The number of the last checkpoint, wherever it was saved.
        self.saved = 0
        #: Brings ``step`` and ``position`` up to the last step that was made.
        self.settle: Listener = lambda: None

    def _slots(self) -> list[ArraySlot]:
        return [slot for group in self._state.groups().values() for slot in group]

    def save(self) -> None:
        """Keep a copy in memory."""
        slots = self._slots()
        if len(self._saved) != len(slots):
            self._saved = [np.array(slot.read()) for slot in slots]
        else:
            for kept, slot in zip(self._saved, slots, strict=True):
                np.copyto(kept, slot.read())
        self._saved_own = {name: getattr(self, name) for name in self._OWN}

    def restore(self) -> None:
        """Go back to the last copy: what came after it is trained again."""
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
        """Give every rank rank 0's."""
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
    """Return a :class:`TrainingState` that Horovod's ``elastic.run`` takes."""
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
            """Do what Horovod's method does, without its two broadcasts of a pickled tuple, which take several times as
            long.
            """
            self._read_messages()
            before, self._last_updated_timestamp = collectives.broadcast_numbers(
                [self._last_updated_timestamp, self._newest], name="hosts"
            )
            if self._last_updated_timestamp > before:
                raise HostsUpdatedInterrupt(False)

        def end_epoch(self, stop: bool) -> tuple[bool, bool]:
            """Take what callbacks have decided from rank 0: whether to stop, and the learning rate.

            Returns:
                Whether to stop, and whether hosts have come or are about to go.
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
            """Check as :meth:`check_host_updates` does, by what came with the last step's gradients, if anything."""
            found = host_updates.look() if self.check_every else None
            if found is None:
                self.check_host_updates()
            elif found:
                raise HostsUpdatedInterrupt(False)
            elif self._read_messages() and cluster.is_chief:
                host_updates.send()

        def _read_messages(self) -> bool:
            """Return whether hosts were added, or are about to go, that the ranks do not know of."""
            while not self._host_messages.empty():
                self._newest = max(self._newest, int(self._host_messages.get()[0]))
            return self._newest > self._last_updated_timestamp

        def sync(self) -> None:
            with telling_losses():
                super().sync()

        def restore(self) -> None:
            if notice.came:
                # Rank 0 has saved and ended, as all were told to: there is nobody to meet again.
                telling_end("rank 0 has ended")
            super().restore()

        def reset(self) -> None:
            # Names of common acts are numbered: a rank that joins begins at the first.
            collectives.restart()
            # The ranks have met as the hosts are now.
            self._last_updated_timestamp = self._newest = max(self._last_updated_timestamp, self._newest)
            host_updates.forget()
            events.rank = cluster.rank

    return ElasticState()


@contextlib.contextmanager
def telling_losses() -> Iterator[None]:
    """Have a block end with the exception that ``hvd.elastic.run`` takes for a lost rank.

    Horovod 0.28 knows the loss by the names of its own operations in TensorFlow's message, and only in the training
    itself. The operations of an optimizer or of common acts have other names, and an UnknownError without such a name
    ends ``hvd.elastic.run`` without a word, as if the training was complete; one while ranks take their state from rank
    0 ends the script.
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
    """A callback that sees one ``fit`` for the whole training, though there is one for each epoch.

    Args:
        inner: The callback.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._begun = False

    def on_train_begin(self, logs: Any = None) -> None:
        """Pass it on once."""
        if not self._begun:
            self._begun = True
            self._inner.on_train_begin(logs)
        # What is called after each step is found at once.
        self.on_train_batch_begin = self._inner.on_train_batch_begin
        self.on_train_batch_end = self._inner.on_train_batch_end

    def on_train_end(self, logs: Any = None) -> None:
        """Do nothing yet; see :meth:`finish`."""

    def finish(self) -> None:
        """Pass on the end of the training."""
        if self._begun:
            self._inner.on_train_end({})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def of_epoch(records: Any, epoch: int) -> Any:
    """Have the channels in Pipe mode that a dataset is made of read an epoch from its beginning."""
    for channel in data_partition.channels_of(records):
        channel.choose(epoch)
    return records


def _end_epoch(model: Any, callbacks: Sequence[Any], epoch: int) -> bool:
    """End an epoch of which so little is left that no step can be made of it; whether a callback ends the training."""
    model.stop_training = False
    for callback in callbacks:
        callback.set_model(model)
        callback.on_epoch_end(epoch, {})
    return bool(model.stop_training)


def remaining(records: Any, *, shuffle: int | None, seed: int | None, epoch: int, position: int) -> Any:
    """Return the rest of an epoch, in its order.

    Args:
        records: All records, in the same order on every rank.
        shuffle: Records in the shuffle buffer; None for the order as it is.
        seed: For the shuffling.
        epoch: The epoch, from 0.
        position: Records that have been consumed.
    """
    if shuffle:
        records = records.shuffle(shuffle, seed=order_seed(seed, epoch), reshuffle_each_iteration=False)
    return records.skip(position) if position else records


class ElasticCluster(Cluster):
    """The ranks of an elastic job, whose number changes; see :meth:`fit`.

    Args:
        surroundings: What the environment said.
        collectives: How the ranks talk.
        planned: The ranks that the job was planned for: what its batch size and its learning rate are meant for.
        late: Whether others trained already when this process got its place.
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
        """Give every rank rank 0's numbers; see :meth:`HorovodTensors.broadcast_numbers`."""
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
        on_resize: str = "scale_rate",
        commit_every: int | None = None,
        on_reset: Listener | None = None,
        parse: Parse | None = None,
        shuffle: int | None = None,
        seed: int | None = None,
        verbose: Any = None,
        **options: Any,
    ) -> list[dict[str, float]]:
        """Train, whatever joins, leaves or dies; see :meth:`container.distributed.Cluster.fit`."""
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
            self._late = False  # it has the training's state

            def write(**options: Any) -> None:
                checkpointer.count_from(state.saved)
                checkpointer.save(model, epoch=state.epoch, step=state.step, **options)
                state.saved += 1  # on every rank: any of them may be the next rank 0, on a host with other files

            def save() -> None:
                write(position={_POSITION: state.position}, wait=True)

            self._follow_size(model, state, on_resize)
            per_step = per_rank * self.size if on_resize == "scale_rate" else max(per_rank, self.size)
            commits = Commits(self, state, every=commit_every, save=None if checkpointer is None else save)
            # Each epoch is a fit of its own, whose steps say little: the faults are for those of the state.
            own = self.callbacks(validation=validate, validation_parse=parse)
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
                    )
                    history.append({name: float(values[-1]) for name, values in found.history.items() if values})
                    stop = commits.stop
                else:
                    stop = _end_epoch(model, lasting, state.epoch)
                # A callback may have seen other values on a rank that came late: what it did on rank 0 counts.
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
        """Rank 0 counts, once in a job: who comes later has no time for it, since the others wait for him."""
        counted = data.count(of_epoch(make_dataset(), 0)) if self.is_chief else 0
        state.records = self.broadcast_object(counted)
        if not state.records:
            raise DistributedError("there are no records to train on.")

    def _restore(self, model: Any, checkpointer: Any, state: Any) -> None:
        """Go on from a durable checkpoint, once, with all ranks.

        Raises:
            DistributedError: those that trained before are gone, rank 0 came too late to take over from them, and there
                is no checkpoint.
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
            # Within an epoch where the save was one in time; of a training that was not elastic the epoch begins anew.
            position = found.progress.position
            state.position = int(position.get(_POSITION, 0)) if isinstance(position, dict) else 0
            if not found.rate_kept:  # the script's is for as many as the job was planned for
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
    """Only note that the notice came: it is looked at between steps."""


def planned_size(environ: Mapping[str, str], size: int) -> int:
    """Return how many ranks the job was planned for, however many it has now; pure."""
    text = environ.get(variables.ELASTIC_PLANNED, "")
    return int(text) if text.isdecimal() and int(text) > 0 else size
