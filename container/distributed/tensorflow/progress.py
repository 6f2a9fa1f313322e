"""Resume within an epoch: which of its records were consumed, and in which order they come."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from container.checkpoint.errors import EpochBeginsAnew
from container.contract.errors import DistributedError, RefusedError

if TYPE_CHECKING:
    from container.distributed.tensorflow.data import BatchOptions

_SEEDS = 1 << 31
#: The first half of a shuffle's seed, as TensorFlow has it where nobody has set another.
_GRAPH_SEED = 87654321


def why_not(records: Any, options: BatchOptions, *, streams: bool) -> str:
    """Return why a training cannot resume within an epoch of these records; "" where it can.

    What their own pipeline does in Python, or reads, is taken to be the same each time.

    Args:
        records: What ``make_dataset`` has returned.
        options: How they become batches.
        streams: Whether they come from channels in Pipe mode, whose order the job keeps.
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
        return "the dataset's options allow any order of the records (deterministic=False)"
    pending = [records]
    while pending:
        one = pending.pop()
        kind = type(one).__name__
        if "Random" in kind:
            return "make_dataset draws at random"
        if "Shuffle" in kind:
            # The n-th order of a seed is that of the n-th iterator of a process: another one's first is not it.
            seeds = [int(getattr(one, name, 0)) for name in ("_seed", "_seed2")]
            if getattr(one, "_reshuffle_each_iteration", None) is not False or seeds == [0, 0]:
                return "make_dataset shuffles by itself. Use cluster.dataset(shuffle=…, seed=…) instead"
        pending += one._inputs()
    return ""


class TrainingData:
    """The dataset that a script trains on, of those that it has made, for a ``Checkpointer``.

    Keras does not say what ``fit`` was given. It is what was made since the training before; where that is more than
    one, the one for which ``resumable=True`` was said.
    """

    def __init__(self) -> None:
        self._made: list[tuple[DataProgress | None, str]] = []
        self._progress: DataProgress | None = None
        self._why = "the data does not come from cluster.dataset(…)"

    def made(self, progress: DataProgress | None, why: str) -> None:
        """Take note of another dataset.

        Args:
            progress: Its progress; None if a training cannot go on within its epochs.
            why: Why not.
        """
        self._made.append((progress, why))

    def training_begins(self, steps: int | None) -> str:
        """Decide which dataset it is.

        Args:
            steps: The steps of an epoch, as Keras has them; None where nobody has said how many.

        Returns:
            Why it could not go on within an epoch after a restart; "" where it could.

        Raises:
            RefusedError: it could not, and was asked to.
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
        """See :meth:`DataProgress.position`; None without one."""
        return self._progress.position(epoch, batch) if self._progress is not None else None

    def resume(self, position: Any) -> bool:
        """See :meth:`DataProgress.resume`."""
        if self._progress is None:
            raise EpochBeginsAnew(self._why)
        return self._progress.resume(position)


class DataProgress:
    """The position in the training data, for a ``Checkpointer`` (see its ``callback(data=…)``).

    The order of an epoch's records is a function of seed and epoch, so that a later process can go on where a
    checkpoint was: it begins the same epoch of the streams, and leaves out what was consumed.

    Args:
        channels: The channels in Pipe mode that are read.
        batch_size: Records in a rank's batch.
        size: The number of ranks.
        rank: This one.
        seed: Of the shuffling; the same on all ranks.
        shuffled: Whether records are shuffled.
        insist: Whether it is an error if it cannot go on within an epoch; else the epoch begins anew.

    Attributes:
        insists: See above.
        batches: The batches of a whole epoch; None where that is not known.
    """

    def __init__(
        self,
        channels: list[Any],
        *,
        batch_size: int,
        size: int,
        rank: int,
        seed: int,
        shuffled: bool,
        insist: bool = True,
    ) -> None:
        self._channels = channels
        self._batch_size = batch_size
        self._size = size
        self._rank = rank
        self._seed = seed
        self._shuffled = shuffled
        self.insists = insist
        self.batches: int | None = None
        self._epoch = 0  # the next one
        self._skip = 0
        self._streams: dict[str, int] = {}  # channel -> its epoch, as it was when the current epoch began

    @staticmethod
    def any_seed() -> int:
        """Return a seed for a job without one."""
        return random.randrange(_SEEDS)

    def why_not(self, steps: int | None) -> str:
        """Return why it cannot tell what a ``fit`` has consumed; "" where it can.

        Args:
            steps: The steps of an epoch, as Keras has them; None where nobody has said how many.

        Raises:
            RefusedError: it cannot, and was asked to.
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
        """Begin an epoch: return the seed of its order, and how many of this rank's records to leave out."""
        self._streams = {channel.channel: channel.next_epoch() for channel in self._channels}
        if self._skip and self._resumed is not None:
            self._streams, self._resumed = self._resumed, None
        skip, self._skip = self._skip, 0
        # Far apart, so that an epoch of one rank is not the next one of another's.
        seed = (self._seed + self._rank + 1_000_003 * self._epoch) % _SEEDS
        self._epoch += 1
        return seed, skip

    _resumed: dict[str, int] | None = None

    def position(self, epoch: int, batch: int) -> dict[str, Any]:
        """Return what a checkpoint keeps.

        Args:
            epoch: Finished epochs, as Keras counts them.
            batch: Finished batches of the one under way.
        """
        within = batch > 0
        streams = self._streams if within else {one.channel: one.next_epoch() for one in self._channels}
        return {
            "epoch": self._epoch - 1 if within else self._epoch,
            "records": batch * self._batch_size,  # of each rank's shard
            "streams": streams,
            "seed": self._seed,
            "size": self._size,
            "batch_size": self._batch_size,
        }

    def resume(self, position: Any) -> bool:
        """Go on where a checkpoint was.

        Returns:
            Whether anything of its epoch may be left.

        Raises:
            DistributedError: the records that were consumed cannot be told any more, and it was to go on within.
            EpochBeginsAnew: the same, where it was not asked to.
        """
        if not isinstance(position, dict) or "streams" not in position:
            raise EpochBeginsAnew("the checkpoint has no position in the data")
        records = int(position["records"])
        same = position["size"] == self._size and position["batch_size"] == self._batch_size
        # In their own order, the first batches of all ranks together are the same records for any number of ranks.
        same = same or (
            not self._shuffled and position["size"] * position["batch_size"] == self._size * self._batch_size
        )
        if records and not same:
            why = (
                "fleetfit cannot tell which records of the epoch are left, because the sizes have changed. The "
                f"checkpoint is of {position['size']} ranks with batches of {position['batch_size']} records, but "
                f"now {self._size} ranks have batches of {self._batch_size}"
            )
            if not self.insists:
                self._epoch, self._seed = int(position["epoch"]), int(position["seed"])
                raise EpochBeginsAnew(why)
            raise DistributedError(f"{why}. Resume with the same sizes, or from a checkpoint at the end of an epoch.")
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
        """Return the records from where :meth:`begin` says, which each iterator asks for anew.

        Args:
            records: All records of an epoch.
            shuffle: Records in the shuffle buffer; None for no shuffling.
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
                # The order is the seed's alone: within this function, the script's tf.random.set_seed() does not count.
                tf.compat.v1.set_random_seed(_GRAPH_SEED)
                found = found.shuffle(shuffle, seed=tf.ensure_shape(order, []), reshuffle_each_iteration=False)
            return found.skip(tf.ensure_shape(consumed, []))

        return tf.data.Dataset.from_tensors(0).flat_map(begun)
