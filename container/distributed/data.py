"""Which records a process trains on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from container.contract.names import unknown
from container.distributed.errors import DistributedError

#: How records are divided among the ranks.
PARTITIONS = ("shard",)

MakeDataset = Callable[[], Any]


def per_rank_batch(global_batch_size: int, size: int) -> int:
    """A rank's share of a global batch.

    Raises:
        ValueError: it does not divide; the message names the nearest sizes that do.
    """
    if isinstance(global_batch_size, bool) or not isinstance(global_batch_size, int) or global_batch_size < 1:
        raise ValueError(f"global_batch_size must be a whole number, 1 or more; got {global_batch_size!r}.")
    if global_batch_size % size:
        below = global_batch_size // size * size
        nearest = " or ".join(str(value) for value in (below, below + size) if value)
        raise ValueError(
            f"global_batch_size={global_batch_size} cannot be divided evenly among {size} ranks, and uneven batches "
            f"would weigh records unevenly; use {nearest}."
        )
    return global_batch_size // size


def check_partition(partition: str) -> None:
    """Refuse an unknown way to divide records.

    Raises:
        ValueError: it is unknown.
    """
    if partition not in PARTITIONS:
        raise ValueError(unknown("partition", partition, PARTITIONS))


def training_shard(
    records: Any,
    *,
    rank: int,
    size: int,
    batch_size: int,
    parse: Callable[..., Any] | None,
    shuffle: int | None,
    seed: int | None,
    repeat: bool,
) -> Any:
    """A rank's batches for training: every ``size``-th record; the same number of batches on every rank.

    Records are taken in groups of ``size``, one for each rank, and the last, incomplete group is left out, as is the
    last, incomplete batch: a rank with one more batch than another would wait for it for ever.

    Args:
        records: A ``tf.data.Dataset`` of single records, the same and in the same order on every rank.
        rank: The rank.
        size: The number of ranks.
        batch_size: Records per batch of this rank.
        parse: Applied to each of the rank's records; None for nothing.
        shuffle: Records in the shuffle buffer; None for no shuffling.
        seed: For the shuffling.
        repeat: Whether it goes on without end.
    """
    import tensorflow as tf

    if size > 1:
        records = records.batch(size, drop_remainder=True).map(
            lambda *group: _unpack(tf.nest.map_structure(lambda of_all: of_all[rank], group)),
            num_parallel_calls=tf.data.AUTOTUNE,
        )
    records = _prepare(records, parse=parse, shuffle=shuffle, seed=None if seed is None else seed + rank, repeat=repeat)
    return _without_autoshard(_full_batches(records, batch_size).prefetch(tf.data.AUTOTUNE))


def worker_shard(
    records: Any,
    *,
    worker: Any,
    workers: int,
    batch_size: int,
    parse: Callable[..., Any] | None,
    shuffle: int | None,
    seed: int | None,
) -> Any:
    """A worker's endless batches under parameter servers: every ``workers``-th record, again and again.

    Args:
        records: As for :func:`training_shard`.
        worker: The worker's number, which may be a tensor.
        workers: The number of workers.
        batch_size: Records per batch.
        parse: Applied to each record.
        shuffle: Records in the shuffle buffer.
        seed: For the shuffling.
    """
    import tensorflow as tf

    records = records.shard(workers, worker)
    records = _prepare(records, parse=parse, shuffle=shuffle, seed=seed, repeat=True)
    return _without_autoshard(records.batch(batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE))


def evaluation_shard(records: Any, *, rank: int, size: int, batch_size: int, parse: Callable[..., Any] | None) -> Any:
    """A rank's batches for evaluation: every record belongs to one rank, and none is left out."""
    import tensorflow as tf

    records = records.shard(size, rank) if size > 1 else records
    records = _prepare(records, parse=parse, shuffle=None, seed=None, repeat=False)
    return _without_autoshard(records.batch(batch_size).prefetch(tf.data.AUTOTUNE))


def count(records: Any) -> int:
    """The number of records: as the dataset knows it, or counted by reading them.

    Raises:
        DistributedError: it repeats without end.
    """
    import tensorflow as tf

    known = int(records.cardinality())
    if known == tf.data.INFINITE_CARDINALITY:
        raise DistributedError("the dataset repeats without end; give make_dataset one that does not.")
    if known >= 0:
        return known
    return int(records.reduce(tf.constant(0, tf.int64), lambda total, *_: total + 1))


def _prepare(
    records: Any, *, parse: Callable[..., Any] | None, shuffle: int | None, seed: int | None, repeat: bool
) -> Any:
    import tensorflow as tf

    if shuffle:
        records = records.shuffle(shuffle, seed=seed)
    if repeat:
        records = records.repeat()
    if parse is not None:
        records = records.map(parse, num_parallel_calls=tf.data.AUTOTUNE)
    return records


def _full_batches(records: Any, batch_size: int) -> Any:
    """Batches, without the last one if it is incomplete.

    Their first dimension is left unknown where the number of batches is: Keras 3.15 finds the end of such a dataset
    by asking for one batch too many, and a metric that counts by a size known beforehand counts that batch too (22
    batches of 64 that are all right had an accuracy of 22 / 23).
    """
    import tensorflow as tf

    batches = records.batch(batch_size, drop_remainder=True)
    if int(batches.cardinality()) != tf.data.UNKNOWN_CARDINALITY:
        return batches
    return records.batch(batch_size).filter(lambda *batch: tf.shape(tf.nest.flatten(batch)[0])[0] == batch_size)


def _unpack(group: tuple[Any, ...]) -> Any:
    """A dataset of single tensors stays one: map() would make tuples of one of it."""
    return group[0] if len(group) == 1 else group


def _without_autoshard(dataset: Any) -> Any:
    import tensorflow as tf

    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return dataset.with_options(options)
