"""Going on within an epoch: which records of it were consumed, and in which order they come."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

from container.distributed import light
from container.distributed.errors import DistributedError

_SEEDS = 1 << 31


class DataProgress:
    """Where the training data is; what a ``Checkpointer`` asks and tells (see its ``callback(data=…)``).

    The order of an epoch's records is a function of seed and epoch, so that a later process can go on where a
    checkpoint was: it begins the same epoch of the streams, and leaves out what was consumed.

    Args:
        channels: The channels in Pipe mode that are read.
        batch_size: Records in a rank's batch.
        size: The number of ranks.
        rank: This one.
        seed: Of the shuffling; None for any.
        shuffled: Whether records are shuffled.
    """

    def __init__(
        self, channels: list[Any], *, batch_size: int, size: int, rank: int, seed: int | None, shuffled: bool
    ) -> None:
        self._channels = channels
        self._batch_size = batch_size
        self._size = size
        self._rank = rank
        self._seed = random.randrange(_SEEDS) if seed is None else seed
        self._shuffled = shuffled
        self._epoch = 0  # the next one
        self._skip = 0
        self._streams: dict[str, int] = {}  # channel -> its epoch, as it was when the current epoch began

    def begin(self) -> tuple[int, int]:
        """An epoch begins: the seed of its order, and how many of this rank's records to leave out."""
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
        """What a checkpoint keeps.

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
            DistributedError: the records that were consumed cannot be told any more.
        """
        if not isinstance(position, dict) or "streams" not in position:
            print("checkpoints: it does not say where the data was; the next epoch begins", file=sys.stderr, flush=True)
            return False
        records = int(position["records"])
        same = position["size"] == self._size and position["batch_size"] == self._batch_size
        # In their own order, the first batches of all ranks together are the same records for any number of ranks.
        same = same or (
            not self._shuffled and position["size"] * position["batch_size"] == self._size * self._batch_size
        )
        if records and not same:
            raise DistributedError(
                f"the checkpoint was made within an epoch by {position['size']} ranks with batches of "
                f"{position['batch_size']} records, and now {self._size} ranks have batches of {self._batch_size}: "
                "which records are left cannot be told. Go on with the same sizes, or from a checkpoint at an epoch's "
                "end."
            )
        self._epoch = int(position["epoch"])
        self._seed = int(position["seed"])
        self._skip = records // int(position["batch_size"]) * self._batch_size
        self._streams = {str(name): int(epoch) for name, epoch in position["streams"].items()}
        self._resumed = dict(self._streams)
        for channel in self._channels:
            if channel.channel in self._streams:
                channel.resume(self._streams[channel.channel], 0)
        return True

    def epoch(self, make: Callable[[Any, Any], Any]) -> Any:
        """A dataset of what ``make`` makes of :meth:`begin`'s answer, which each iterator asks for anew.

        Args:
            make: Gets the seed and the number of records to leave out, as tensors; returns a dataset.
        """
        import numpy as np
        import tensorflow as tf

        def begin() -> tuple[Any, Any]:
            order, consumed = self.begin()
            return np.int64(order), np.int64(consumed)

        def begun(_: Any) -> Any:
            order, consumed = tf.numpy_function(begin, [], [tf.int64, tf.int64])
            return make(tf.ensure_shape(order, []), tf.ensure_shape(consumed, []))

        # One function, and not from_generator, which has three: each iterator makes its functions anew, which takes
        # longer than to read a small epoch.
        return light.flat_map(tf.data.Dataset.from_tensors(0), begun)
