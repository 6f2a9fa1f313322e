"""Which records a process trains on.

With ranks that make each step together, all of them need the same number of batches, and each record has to weigh the
same whoever has it. So the last batches get weights: a rank that has no record left where others have one gives a copy
with weight zero, and the others' weights make the mean over all ranks that of the real records.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from container.contract.names import unknown
from container.distributed import padding
from container.distributed.errors import DistributedError, RefusedError

if TYPE_CHECKING:
    from container.distributed.agreeing import Agreement
    from container.distributed.progress import DataProgress

#: How records are divided among the ranks.
PARTITIONS = ("shard", "shuffle")
#: What becomes of records that do not make a whole batch on every rank.
REMAINDERS = ("pad", "drop")


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


def check_remainder(remainder: str | None) -> None:
    """Refuse an unknown treatment of what is left over.

    Raises:
        ValueError: it is unknown.
    """
    if remainder is not None and remainder not in REMAINDERS:
        raise ValueError(unknown("remainder", remainder, REMAINDERS))


def training_shard(
    records: Any,
    *,
    rank: int,
    size: int,
    local_rank: int,
    local_size: int,
    batch_size: int,
    parse: Callable[..., Any] | None,
    shuffle: int | None,
    seed: int | None,
    repeat: bool,
    partition: str = "shard",
    remainder: str | None = None,
    holds: str = "all",
    agreement: Callable[[], Agreement] | None = None,
    progress: DataProgress | None = None,
) -> Any:
    """A rank's batches for training: the same number of batches on every rank.

    Args:
        records: A ``tf.data.Dataset`` of single records; if it holds all, in the same order on every rank.
        rank: The rank.
        size: The number of ranks.
        local_rank: The rank on its host.
        local_size: The number of ranks of its host.
        batch_size: Records per batch of this rank.
        parse: Applied to each of the rank's records; None for nothing.
        shuffle: Records in the shuffle buffer; None for no shuffling.
        seed: For the shuffling.
        repeat: Whether it goes on without end.
        partition: One of :data:`PARTITIONS`.
        remainder: One of :data:`REMAINDERS`; None to pad what can have weights.
        holds: What ``records`` has: one of :data:`container.distributed.holdings.HOLDINGS`.
        agreement: Connects the ranks, where they do not know what the others have.
        progress: Where the data is, if the training is to go on within an epoch.

    Raises:
        ValueError: the options exclude each other, or the records cannot have weights.
    """
    import tensorflow as tf

    own_seed = None if seed is None else seed + rank
    if partition == "shuffle":
        records = _random_part(records, size=size, shuffle=shuffle, seed=own_seed, holds=holds)
        shuffle, holds = None, "part"
    if size == 1 or holds == "part" or (repeat and holds != "all"):
        if repeat and holds == "host":
            records = records.shard(local_size, local_rank)
        records = _prepare(records, parse=parse, shuffle=shuffle, seed=own_seed, repeat=repeat, progress=progress)
        whole = remainder == "drop" or repeat or (remainder is None and not padding.weighable(records.element_spec))
        return _finished(_full_batches(records, batch_size) if whole else records.batch(batch_size))
    if holds == "all":
        spare = None if repeat or remainder == "drop" else padding.can_be_spare(records, size)
        groups = records.batch(size, drop_remainder=spare is None)
        dealt = groups.map(lambda *group: padding.deal(group, rank, size), num_parallel_calls=tf.data.AUTOTUNE)
        records = _prepare_pairs(dealt, parse=parse, shuffle=shuffle, seed=own_seed, repeat=repeat, progress=progress)
        weighable = padding.weighable(records.element_spec[0])
        if remainder == "pad" and not weighable:
            raise ValueError(padding.NO_WEIGHTS.format(records.element_spec[0]))
        padded = spare is not None and weighable
        if not padded:
            only = records.filter(lambda element, of_all: tf.equal(of_all[1], size)).map(
                lambda element, of_all: element
            )
            return _finished(_full_batches(only, batch_size))
        batches = records.batch(batch_size)
        if not spare:  # the records are a multiple of the ranks: no rank lacks one
            return _finished(batches.map(lambda element, of_all: element))
        return _finished(batches.map(lambda element, of_all: padding.weigh_dealt(element, of_all, size)))
    assert agreement is not None
    if holds == "host":
        records = records.shard(local_size, local_rank)
    records = _prepare(records, parse=parse, shuffle=shuffle, seed=own_seed, repeat=False, progress=progress)
    if not padding.weighable(records.element_spec):
        if remainder == "pad":
            raise ValueError(padding.NO_WEIGHTS.format(records.element_spec))
        remainder = "drop"
    return _finished(padding.agreed(records, agreement(), batch_size=batch_size, drop=remainder == "drop"))


def _random_part(records: Any, *, size: int, shuffle: int | None, seed: int | None, holds: str) -> Any:
    """As many records as a shard has, from a random order of all of them."""
    if not shuffle:
        raise ValueError("partition='shuffle' needs shuffle=…, the number of records in the shuffle buffer.")
    if holds != "all":
        raise RefusedError(
            "partition='shuffle' needs all records in every process, and the channel is ShardedByS3Key: use "
            "distribution='FullyReplicated', or partition='shard'."
        )
    if size > 1:
        warnings.warn(
            "partition='shuffle': each rank draws from all records by itself, so that within an epoch some records are "
            "seen by several ranks and some by none; partition='shard' shows each record once.",
            stacklevel=4,
        )
    return records.shuffle(shuffle, seed=seed).shard(size, 0)


def worker_shard(
    records: Any,
    *,
    worker: Any,
    workers: int,
    batch_size: int,
    parse: Callable[..., Any] | None,
    shuffle: int | None,
    seed: int | None,
    partition: str = "shard",
    holds: str = "all",
) -> Any:
    """A worker's endless batches under parameter servers: every ``workers``-th record, again and again.

    Args are those of :func:`training_shard`, and:
        worker: The worker's number, which may be a tensor.
        workers: The number of workers.
    """
    import tensorflow as tf

    if partition == "shuffle":
        if not shuffle:
            raise ValueError("partition='shuffle' needs shuffle=…, the number of records in the shuffle buffer.")
    elif holds == "all":
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
    records: Any,
    *,
    parse: Callable[..., Any] | None,
    shuffle: int | None,
    seed: int | None,
    repeat: bool,
    progress: DataProgress | None = None,
) -> Any:
    import tensorflow as tf

    if progress is not None:
        whole = records

        def of_epoch(order: Any, consumed: Any) -> Any:
            found = whole.shuffle(shuffle, seed=order, reshuffle_each_iteration=False) if shuffle else whole
            return found.skip(consumed)

        records = progress.starts().flat_map(of_epoch)
    elif shuffle:
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


def _prepare_pairs(
    dealt: Any,
    *,
    parse: Callable[..., Any] | None,
    shuffle: int | None,
    seed: int | None,
    repeat: bool,
    progress: DataProgress | None,
) -> Any:
    """:func:`_prepare` for records that come with something of ours."""

    users = parse

    def parse_first(element: Any, of_ours: Any) -> Any:
        assert users is not None
        return (users(*element) if isinstance(element, tuple) else users(element)), of_ours

    return _prepare(
        dealt,
        parse=None if parse is None else parse_first,
        shuffle=shuffle,
        seed=seed,
        repeat=repeat,
        progress=progress,
    )


def _finished(batches: Any) -> Any:
    import tensorflow as tf

    return _without_autoshard(batches.prefetch(tf.data.AUTOTUNE))


def _without_autoshard(dataset: Any) -> Any:
    import tensorflow as tf

    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return dataset.with_options(options)
