"""Continue a training within an epoch after a restart. To this end, record which records of the epoch were consumed,
and reproduce the epoch's order.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from container.checkpoint.errors import EpochBeginsAnew
from container.contract.errors import DistributedError, RefusedError

if TYPE_CHECKING:
    from container.distributed.tensorflow.data import BatchOptions

ANY_ORDER = "the dataset's options allow any order of the records (deterministic=False)"

_SEEDS = 1 << 31
#: The first half of a shuffle's seed: TensorFlow's default if no other seed was set.
_GRAPH_SEED = 87654321


def why_not(records: Any, options: BatchOptions, *, streams: bool) -> str:
    """Return why a training cannot continue within an epoch of these records after a restart. Return "" if the training
    can continue.

    The function assumes that the dataset's Python code and files do not change.

    Args:
        records: The dataset that ``make_dataset`` returned.
        options: The options for converting records to batches.
        streams: Whether the records come from channels in Pipe mode, whose order fleetfit reproduces.
    """
    if options.repeat:
        return "repeat=True makes one endless epoch of the records"
    if options.partition == "shuffle":
        return "partition='shuffle' draws different records each time"
    if streams:
        return ""
    if options.shuffle and options.seed is None:
        return f"shuffle={options.shuffle} without seed=… gives a different order after each start"
    if records.options().deterministic is False:
        return ANY_ORDER
    for one in _all_of(records):
        kind = type(one).__name__
        if "Random" in kind:
            return "make_dataset draws at random"
        # The n-th order of a seed belongs to the n-th iterator of a process. After a restart, the first iterator would
        # have the first order again, and not that of the interrupted epoch.
        is_fixed = getattr(one, "_reshuffle_each_iteration", None) is False and _is_seeded(one)
        if "Shuffle" in kind and not is_fixed:
            return "make_dataset shuffles by itself. Use cluster.dataset(shuffle=…, seed=…) instead"
    return ""


def why_apart(records: Any) -> str:
    """Return why the order of the records may differ between the processes that call ``make_dataset``. Return "" if no
    reason is known.

    Args:
        records: The dataset that ``make_dataset`` returned.
    """
    if records.options().deterministic is False:
        return ANY_ORDER
    for one in _all_of(records):
        if any(word in type(one).__name__ for word in ("Random", "Shuffle")) and not _is_seeded(one):
            return "make_dataset shuffles without a seed (list_files() shuffles, too, unless its shuffle=False)"
    return ""


def _all_of(records: Any) -> Iterator[Any]:
    """Yield a dataset and all datasets that it reads."""
    pending = [records]
    while pending:
        one = pending.pop()
        yield one
        pending += one._inputs()
        if (reader := getattr(one, "_impl", None)) is not None:  # TextLineDataset does not state its files as inputs
            pending.append(reader)


def _is_seeded(one: Any) -> bool:
    try:
        return [int(getattr(one, name, 0)) for name in ("_seed", "_seed2")] != [0, 0]
    except TypeError:  # a symbolic tensor, in a graph
        return True


def in_order_of(records: Any, shuffle: int, seed: Any) -> Any:
    """Shuffle records in an order that depends on the seed only.

    Call this function only within a function that is passed to a dataset's method, such as ``flat_map``. Such a
    function is traced in a graph of its own, in which the seed of the script's ``tf.random.set_seed()`` has no effect.
    The script's seed may differ between ranks.

    Args:
        records: The records.
        shuffle: Number of records in the shuffle buffer.
        seed: The seed, as a number or a tensor.
    """
    import tensorflow as tf

    tf.compat.v1.set_random_seed(_GRAPH_SEED)
    return records.shuffle(shuffle, seed=seed, reshuffle_each_iteration=False)


class TrainingData:
    """The data source of a ``Checkpointer``. This class infers which of the script's datasets ``fit`` trains on,
    because a callback cannot find out which dataset was passed to ``fit``.

    If one dataset was created since the previous training, the class assumes that ``fit`` trains on this dataset. If
    several datasets were created, the class assumes that ``fit`` trains on the last one with ``resumable=True``. If
    none of them has ``resumable=True``, the dataset is unknown, and the training cannot continue within an epoch.
    """

    def __init__(self) -> None:
        self._made: list[tuple[DataProgress | None, str]] = []
        self._progress: DataProgress | None = None
        self._why = "the data does not come from cluster.dataset(…)"

    def made(self, progress: DataProgress | None, why: str) -> None:
        """Record that the script has created a dataset.

        Args:
            progress: The position of the training in the dataset. None if a training cannot continue within an epoch of
                the dataset.
            why: The reason why ``progress`` is None. Otherwise "".
        """
        self._made.append((progress, why))

    def training_begins(self, steps: int | None) -> str:
        """Determine which dataset is used by the training that begins now.

        Args:
            steps: The value of ``steps_per_epoch`` that Keras uses. None if ``steps_per_epoch`` is not set.

        Returns:
            The reason why the training could not continue within an epoch after a restart. "" if the training could
            continue.

        Raises:
            RefusedError: the training could not continue within an epoch, although ``resumable=True`` requires this.
        """
        made, self._made = self._made, []
        if made:
            asked = [one for one in made if one[0] is not None and one[0].insists]
            choice = asked[-1:] or made
            self._progress, self._why = choice[0]
            if len(choice) > 1:
                self._progress = None
                self._why = (
                    f"cluster.dataset() has made {len(made)} datasets, and fleetfit cannot tell which dataset fit() "
                    "trains on. Mark the training dataset with resumable=True"
                )
        if self._progress is not None and (why := self._progress.why_not(steps)):
            self._progress, self._why = None, why
        return "" if self._progress is not None else self._why

    def position(self, epoch: int, batch: int) -> Any:
        """Return the position in the training dataset. Return None if the position is not known.

        See :meth:`DataProgress.position`.
        """
        return self._progress.position(epoch, batch) if self._progress is not None else None

    def resume(self, position: Any) -> bool:
        """Continue in the training dataset at a position (see :meth:`DataProgress.resume`).

        Raises:
            EpochBeginsAnew: the training cannot continue within an epoch of this dataset.
        """
        if self._progress is None:
            raise EpochBeginsAnew(self._why)
        return self._progress.resume(position)


class DataProgress:
    """The position of a training in its dataset, for a ``Checkpointer`` (see ``Checkpointer.callback(data=…)``).

    The order of an epoch's records depends only on the seed and the epoch. Therefore a later process can continue at
    the position of a checkpoint. The process begins the same epoch of the channels' streams, and skips the consumed
    records.

    Args:
        channels: The channels in Pipe mode that are read.
        batch_size: Number of records in a rank's batch.
        size: Number of ranks.
        rank: The number of this rank.
        seed: The seed of the shuffling, which must be the same on all ranks.
        shuffle: Number of records in the shuffle buffer. None for no shuffling.
        insist: Whether to raise an error if the training cannot continue within an epoch. If false, the epoch starts
            over.

    Attributes:
        insists: The value of the argument ``insist``.
        batches: Number of batches in a whole epoch. None if unknown.
    """

    def __init__(
        self,
        channels: list[Any],
        *,
        batch_size: int,
        size: int,
        rank: int,
        seed: int,
        shuffle: int | None,
        insist: bool = True,
    ) -> None:
        self._channels = channels
        self._batch_size = batch_size
        self._size = size
        self._rank = rank
        self._seed = seed
        self._shuffle = int(shuffle) if shuffle else None
        self.insists = insist
        self.batches: int | None = None
        self._epoch = 0  # number of the next epoch
        self._skip = 0
        self._streams: dict[str, int] = {}  # channel -> epoch of its stream at the beginning of the current epoch

    @staticmethod
    def any_seed() -> int:
        """Return a random seed, for a job whose script sets no seed."""
        return random.randrange(_SEEDS)

    def why_not(self, steps: int | None) -> str:
        """Return why the records that ``fit`` has consumed cannot be determined. Return "" if these records can be
        determined.

        Args:
            steps: The value of ``steps_per_epoch`` that Keras uses. None if ``steps_per_epoch`` is not set.

        Raises:
            RefusedError: ``insist`` is True, and ``steps`` differs from the known number of batches.
        """
        if steps is None or steps == self.batches or self._channels:
            return ""
        there = f"the data has {self.batches}" if self.batches else "the number of batches in the data is unknown"
        if self.batches is not None and self.insists:
            raise RefusedError(
                f"steps_per_epoch={steps}, but the data has {self.batches} batches: if an epoch is not one pass "
                "over the data, fleetfit cannot tell which records are left. Leave out steps_per_epoch or "
                "resumable=True."
            )
        return f"steps_per_epoch={steps}, but {there}: an epoch of fit() may differ from one pass over the data"

    def begin(self) -> tuple[int, int]:
        """Begin the next epoch. After :meth:`resume`, begin the epoch at the restored position.

        Returns:
            The seed of the epoch's order, and the number of this rank's records to skip.
        """
        self._streams = {channel.channel: channel.next_epoch() for channel in self._channels}
        if self._skip and self._resumed is not None:
            self._streams, self._resumed = self._resumed, None
        skip, self._skip = self._skip, 0
        # The seeds of two epochs are far apart, so that one rank's epoch does not have the same order as another rank's
        # next epoch.
        seed = (self._seed + self._rank + 1_000_003 * self._epoch) % _SEEDS
        self._epoch += 1
        return seed, skip

    _resumed: dict[str, int] | None = None

    def position(self, epoch: int, batch: int) -> dict[str, Any]:
        """Return the training's position in the dataset, as a JSON value for a checkpoint.

        Args:
            epoch: Number of finished epochs, as Keras counts them.
            batch: Number of finished batches of the current epoch.
        """
        within = batch > 0
        streams = self._streams if within else {one.channel: one.next_epoch() for one in self._channels}
        return {
            "epoch": self._epoch - 1 if within else self._epoch,
            "records": batch * self._batch_size,  # in each rank's shard
            "streams": streams,
            "seed": self._seed,
            "size": self._size,
            "batch_size": self._batch_size,
            "shuffle": self._shuffle,
        }

    def resume(self, position: Any) -> bool:
        """Continue at the position that a checkpoint contains.

        Returns:
            Always True, which means that the caller must still run the epoch: some of its records may not have been
            consumed yet.

        Raises:
            DistributedError: the number of ranks, the batch size or the shuffle buffer has changed. Therefore the
                consumed records cannot be determined, but ``insists`` is True.
            EpochBeginsAnew: the checkpoint has no position in the data, or the consumed records cannot be determined
                and ``insists`` is False.
        """
        if not isinstance(position, dict) or "streams" not in position:
            raise EpochBeginsAnew("the checkpoint has no position in the data")
        records = int(position["records"])
        same = position["size"] == self._size and position["batch_size"] == self._batch_size
        # Without shuffling, the first batches of all ranks together contain the same records for any number of ranks.
        same = same or (
            not self._shuffle and position["size"] * position["batch_size"] == self._size * self._batch_size
        )
        changed = ""
        if not same:
            changed = (
                f"the sizes have changed. The checkpoint is of {position['size']} ranks with batches of "
                f"{position['batch_size']} records, but now {self._size} ranks have batches of {self._batch_size}"
            )
        elif (before := position.get("shuffle", self._shuffle)) != self._shuffle:  # older checkpoints do not contain it
            changed = f"their order has changed. The checkpoint is of shuffle={before}, but now shuffle={self._shuffle}"
        if records and changed:
            why = f"fleetfit cannot tell which records of the epoch are left, because {changed}"
            if not self.insists:
                self._epoch, self._seed = int(position["epoch"]), int(position["seed"])
                raise EpochBeginsAnew(why)
            raise DistributedError(f"{why}. Resume with the same values, or from a checkpoint at the end of an epoch.")
        self._epoch = int(position["epoch"])
        self._seed = int(position["seed"])
        self._skip = records // int(position["batch_size"]) * self._batch_size
        self._streams = {str(name): int(epoch) for name, epoch in position["streams"].items()}
        self._resumed = dict(self._streams)
        for channel in self._channels:
            if channel.channel in self._streams:
                channel.resume(self._streams[channel.channel], 0)
        return True

    def epoch(self, records: Any, shuffle: int | None) -> Any:
        """Return a dataset of the epoch's remaining records.

        Each iteration over the dataset calls :meth:`begin`, and begins at the position that :meth:`begin` returns.

        Args:
            records: All records of an epoch.
            shuffle: Number of records in the shuffle buffer. None for no shuffling.
        """
        import numpy as np
        import tensorflow as tf

        def begin() -> tuple[Any, Any]:
            order, consumed = self.begin()
            return np.int64(order), np.int64(consumed)

        def begun(_: Any) -> Any:
            order, consumed = tf.numpy_function(begin, [], [tf.int64, tf.int64])
            found = records
            if shuffle:
                found = in_order_of(found, shuffle, tf.ensure_shape(order, []))
            return found.skip(tf.ensure_shape(consumed, []))

        return tf.data.Dataset.from_tensors(0).flat_map(begun)
