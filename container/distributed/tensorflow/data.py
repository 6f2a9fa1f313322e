"""Shard a training's records over the ranks.

With ranks that make each step together, all of them need the same number of batches, and each record has to weigh the
same whoever has it. So the last batches get weights: a rank that has no record left where others have one gives a copy
with weight zero, and the others' weights make the mean over all ranks that of the real records.
"""

from __future__ import annotations

import dataclasses
import numbers
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from container.contract.errors import DistributedError, RefusedError
from container.contract.names import unknown
from container.distributed.tensorflow import padding

if TYPE_CHECKING:
    from container.distributed.core.step_alignment import Agreement
    from container.distributed.tensorflow.progress import DataProgress

#: Returns a ``tf.data.Dataset`` of single records.
MakeDataset = Callable[[], Any]
#: Gets a record, its components one by one, and returns what is trained on.
Parse = Callable[..., Any]

#: How records are divided among the ranks.
PARTITIONS = ("shard", "shuffle")
#: What becomes of records that do not make a whole batch on every rank.
REMAINDERS = ("pad", "drop")


#: Records that a vectorised parse gets at once. They need not be a step's batch, which comes after.
_PARSED_AT_ONCE = 512


_ROWS = "a vectorized parse must return as many rows as it gets records"


class Vectorized:
    """A function that parses many records at once: it gets a tensor of them, and returns tensors with as many rows.

    Args:
        function: The function.
    """

    def __init__(self, function: Parse) -> None:
        self._function = function

    def __call__(self, *records: Any) -> Any:
        """Parse some records.

        Raises:
            tf.errors.InvalidArgumentError: when it runs, there are not as many rows as records.
        """
        import tensorflow as tf

        given = [leaf for leaf in tf.nest.flatten(records) if isinstance(leaf, tf.Tensor)]
        parsed = self._function(*records)
        rows = [leaf for leaf in tf.nest.flatten(parsed) if isinstance(leaf, tf.Tensor)]
        if not given or not rows:
            return parsed
        count = tf.shape(given[0])[0]
        checks = [tf.debugging.assert_equal(tf.shape(leaf)[0], count, message=_ROWS) for leaf in rows]
        with tf.control_dependencies([check for check in checks if check is not None]):
            return tf.nest.map_structure(
                lambda leaf: tf.identity(leaf) if isinstance(leaf, tf.Tensor) else leaf, parsed
            )


def vectorized(function: Parse) -> Vectorized:
    """Say that a ``parse`` function takes many records at once: ``parse=vectorized(lambda records: …)``.

    With ``tf.io.parse_example`` in place of ``tf.io.parse_single_example`` small records are parsed several times
    faster. TensorFlow may trace the function more than once: what it makes belongs to one trace.

    Args:
        function: Gets a tensor of records (a string tensor of shape ``[n]``, say), and returns tensors of ``n`` rows.
    """
    return Vectorized(function)


def per_rank_batch(global_batch_size: Any, size: int) -> int:
    """Return a rank's share of a global batch.

    Raises:
        ValueError: it does not divide; the message names the nearest sizes that do.
    """
    whole = isinstance(global_batch_size, numbers.Integral) and not isinstance(global_batch_size, bool)
    if not whole or global_batch_size < 1:
        raise ValueError(f"global_batch_size must be a whole number, at least 1; got {global_batch_size!r}.")
    if global_batch_size % size:
        below = global_batch_size // size * size
        nearest = " or ".join(str(value) for value in (below, below + size) if value)
        raise ValueError(
            f"global_batch_size={global_batch_size} cannot be divided evenly among {size} ranks. Use {nearest}: "
            "uneven batches would weigh records unevenly."
        )
    return int(global_batch_size) // size


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchOptions:
    """How records become batches: the arguments of the same names of ``cluster.dataset``.

    Raises:
        ValueError: one of them is unknown.
    """

    parse: Parse | None = None
    shuffle: int | None = None
    seed: int | None = None
    repeat: bool = False
    partition: str = "shard"
    remainder: str | None = None
    holds: str | None = None

    def __post_init__(self) -> None:
        if self.partition not in PARTITIONS:
            raise ValueError(unknown("partition", self.partition, PARTITIONS))
        if self.remainder is not None and self.remainder not in REMAINDERS:
            raise ValueError(unknown("remainder", self.remainder, REMAINDERS))

    def prepare(self, records: Any, progress: DataProgress | None = None) -> Any:
        """Return the records shuffled, repeated and parsed.

        Args:
            records: A rank's.
            progress: Where the data is, if the training is to go on within an epoch.
        """
        import tensorflow as tf

        if progress is not None:
            records = progress.epoch(records, self.shuffle)
        elif self.shuffle:
            records = records.shuffle(self.shuffle, seed=self.seed)
        if self.repeat:
            records = records.repeat()
        if isinstance(self.parse, Vectorized):
            parsed = records.batch(_PARSED_AT_ONCE).map(self.parse, num_parallel_calls=tf.data.AUTOTUNE)
            count, records = _count_of(records), parsed.unbatch()
            if count is not None:
                records = records.apply(tf.data.experimental.assert_cardinality(count))
            records._fleetfit_parsed = parsed
        elif self.parse is not None:
            records = records.map(self.parse, num_parallel_calls=tf.data.AUTOTUNE)
        return records

    def prepare_pairs(self, pairs: Any, progress: DataProgress | None) -> Any:
        """Do the same to records that are paired with something of ours."""
        users = self.parse
        if users is None:
            return self.prepare(pairs, progress)

        def parse_first(element: Any, of_ours: Any) -> Any:
            return (users(*element) if type(element) is tuple else users(element)), of_ours

        ours = Vectorized(parse_first) if isinstance(users, Vectorized) else parse_first
        return dataclasses.replace(self, parse=ours).prepare(pairs, progress)


def training_shard(
    records: Any,
    options: BatchOptions,
    *,
    rank: int,
    size: int,
    local_rank: int,
    local_size: int,
    batch_size: int,
    agreement: Callable[[], Agreement] | None = None,
    progress: DataProgress | None = None,
    even: bool = False,
    left_over: int = 0,
) -> Any:
    """Return a rank's batches for training: the same number of batches on every rank.

    Args:
        records: A ``tf.data.Dataset`` of single records; if it holds all, in the same order on every rank.
        options: How they become batches.
        rank: The rank.
        size: The number of ranks.
        local_rank: The rank on its host.
        local_size: The number of ranks of its host.
        batch_size: Records per batch of this rank.
        agreement: Connects the ranks, where they do not know what the others have.
        progress: Where the data is, if the training is to go on within an epoch.
        even: Whether one process divides its batches among devices, which then need equal parts: a last one that is
            not full gets copies of weight zero.
        left_over: Records of each step beyond ``batch_size`` of every rank: the first ranks have one of them each, and
            the others a copy of weight zero. Of all records, not shuffled here, and where they can have weights.

    Raises:
        ValueError: the options exclude each other, or the records cannot have weights.
    """
    tuned = bool(records.options().autotune.enabled)
    holds, remainder = options.holds or "all", options.remainder
    options = dataclasses.replace(options, seed=None if options.seed is None else options.seed + rank)
    if options.partition == "shuffle":
        records = _random_part(records, options, size)
        options, holds = dataclasses.replace(options, shuffle=None), "part"
    if size == 1 or holds == "part" or (options.repeat and holds != "all"):
        if options.repeat and holds == "host":
            records = records.shard(local_size, local_rank)
        records = options.prepare(records, progress)
        weighable = padding.weighable(records.element_spec)
        if even:
            _check_weights(records.element_spec, remainder)
        if remainder == "drop" or options.repeat or (remainder is None and not weighable):
            return _finished(_full_batches(records, batch_size), tuned)
        batches = _batched(records, batch_size)
        if even and padding.can_be_spare(records, batch_size):
            batches = batches.map(lambda *batch: padding.fill(batch, batch_size))
        return _finished(batches, tuned)
    if holds == "all":
        return _finished(_dealt(records, options, progress, rank, size, batch_size, left_over), tuned)
    assert agreement is not None
    if holds == "host":
        records = records.shard(local_size, local_rank)
    records = options.prepare(records, progress)
    drop = not _check_weights(records.element_spec, remainder) or remainder == "drop"
    return _finished(padding.agreed(records, agreement(), batch_size=batch_size, drop=drop), tuned)


def _check_weights(spec: Any, remainder: str | None) -> bool:
    """Return whether records can have weights.

    Raises:
        ValueError: they cannot, and are to be padded.
    """
    weighable = padding.weighable(spec)
    if remainder == "pad" and not weighable:
        raise ValueError(padding.NO_WEIGHTS.format(spec))
    return weighable


def _dealt(
    records: Any,
    options: BatchOptions,
    progress: DataProgress | None,
    rank: int,
    size: int,
    batch_size: int,
    left_over: int,
) -> Any:
    """Return a rank's batches where every rank has all records, and takes its turn; see :func:`training_shard`."""
    import tensorflow as tf

    def weighed(pairs: Any, batch: int) -> Any:
        return _batched(pairs, batch).map(lambda element, of_all: padding.weigh_dealt(element, of_all, size))

    remainder = options.remainder
    # The records that the last turn may lack; None where such a turn is dropped.
    spare = None if options.repeat or remainder == "drop" else padding.can_be_spare(records, size)
    if left_over and spare is not None:
        dealt = padding.deal_steps(records, rank, size, batch_size * size + left_over)
        pairs = options.prepare_pairs(dealt, progress)
        if padding.weighable(pairs.element_spec[0]):
            return weighed(pairs, batch_size + 1)
    if spare == 0:
        ours = options.prepare(records.shard(size, rank), progress)
        weighable = _check_weights(ours.element_spec, remainder)
        return _batched(ours, batch_size) if weighable else _full_batches(ours, batch_size)
    groups = records.batch(size, drop_remainder=spare is None)
    dealt = groups.map(lambda *group: padding.deal(group, rank, size), num_parallel_calls=tf.data.AUTOTUNE)
    pairs = options.prepare_pairs(dealt, progress)
    if _check_weights(pairs.element_spec[0], remainder) and spare is not None:
        return weighed(pairs, batch_size)
    only = pairs.filter(lambda element, of_all: tf.equal(of_all[1], size)).map(lambda element, of_all: element)
    return _full_batches(only, batch_size)


def _random_part(records: Any, options: BatchOptions, size: int) -> Any:
    """Take as many records as a shard has, from a random order of all of them."""
    _check_buffer(options)
    if options.holds not in (None, "all"):
        raise RefusedError(
            "partition='shuffle' needs all records in every process, but the channel is ShardedByS3Key. Use "
            "distribution='FullyReplicated', or partition='shard'."
        )
    if size > 1:
        warnings.warn(
            "partition='shuffle': each rank draws from all records by itself. In an epoch, several ranks may see the "
            "same record, and some records are never seen. With partition='shard', each record is seen once.",
            stacklevel=5,
        )
    return records.shuffle(options.shuffle, seed=options.seed).shard(size, 0)


def _check_buffer(options: BatchOptions) -> None:
    if not options.shuffle:
        raise ValueError("partition='shuffle' needs shuffle=…, the number of records in the shuffle buffer.")


def worker_shard(records: Any, options: BatchOptions, *, worker: Any, workers: int, batch_size: int) -> Any:
    """Return a worker's endless batches under parameter servers: every ``workers``-th record, repeated.

    Args:
        records: The records.
        options: How they become batches.
        worker: The worker's number, which may be a tensor.
        workers: The number of workers.
        batch_size: Records in a batch.
    """
    tuned = bool(records.options().autotune.enabled)
    if options.partition == "shuffle":
        _check_buffer(options)
    elif options.holds in (None, "all"):
        records = records.shard(workers, worker)
    records = dataclasses.replace(options, repeat=True).prepare(records)
    return _finished(_batched(records, batch_size, full=True), tuned)


def evaluation_shard(records: Any, *, rank: int, size: int, batch_size: int, parse: Parse | None) -> Any:
    """Return a rank's batches for evaluation: every record belongs to exactly one rank."""
    tuned = bool(records.options().autotune.enabled)
    records = records.shard(size, rank) if size > 1 else records
    records = BatchOptions(parse=parse).prepare(records)
    return _finished(_batched(records, batch_size), tuned)


def batches_of_epoch(records: int, batches: Any, *, size: int, batch_size: int, remainder: str | None) -> int:
    """Return how many batches each rank has in an epoch of so many records, where every rank may see all of them.

    Args:
        records: How many.
        batches: A rank's batches, as :func:`training_shard` has made them.
        size: The number of ranks.
        batch_size: Records in a batch of a rank.
        remainder: As for :func:`training_shard`.
    """
    if remainder == "drop" or (remainder is None and not padding.weighable(batches.element_spec)):
        return records // size // batch_size
    longest = -(-records // size)
    return -(-longest // batch_size)


def count(records: Any) -> int:
    """Return the number of records: as the dataset knows it, or counted by reading them.

    Raises:
        DistributedError: it repeats without end.
    """
    import tensorflow as tf

    known = int(records.cardinality())
    if known == tf.data.INFINITE_CARDINALITY:
        raise DistributedError("the dataset repeats without end: make_dataset must return a dataset without repeat().")
    if known >= 0:
        return known
    return int(records.reduce(tf.constant(0, tf.int64), lambda total, *_: total + 1))


def _count_of(records: Any) -> int | None:
    """Return the number of records if the dataset knows it; -1 if it has no end."""
    import tensorflow as tf

    if not tf.executing_eagerly():  # in a worker of parameter servers, whose data goes on without end
        return None
    count = int(records.cardinality())
    return None if count == tf.data.UNKNOWN_CARDINALITY else count


def _batched(records: Any, batch_size: int, *, full: bool = False) -> Any:
    """Return a step's batches. Where many records were parsed at once, batches are cut from these, which costs next to
    nothing.

    Args:
        records: What was prepared for batches.
        batch_size: Records in each.
        full: Whether a last one with fewer is left out.
    """
    import tensorflow as tf

    parsed = getattr(records, "_fleetfit_parsed", None)
    specs = tf.nest.flatten(records.element_spec)
    # Rows of other shapes would be refused by batch(), and not by rebatch().
    if parsed is None or not all(type(spec) is tf.TensorSpec and spec.shape.is_fully_defined() for spec in specs):
        return records.batch(batch_size, drop_remainder=full)
    batches = parsed.rebatch(batch_size, drop_remainder=full)
    count = _count_of(records)
    if count is None:
        return batches
    number = (count if full else count + batch_size - 1) // batch_size if count >= 0 else count
    return batches.apply(tf.data.experimental.assert_cardinality(number))


def _full_batches(records: Any, batch_size: int) -> Any:
    """Return the batches, without the last one if it is incomplete.

    Their first dimension is left unknown where the number of batches is: Keras 3.15 finds the end of such a dataset
    by asking for one batch too many, and a metric that counts by a size known beforehand counts that batch too (22
    batches of 64 that are all right had an accuracy of 22 / 23).
    """
    import tensorflow as tf

    batches = _batched(records, batch_size, full=True)
    if int(batches.cardinality()) != tf.data.UNKNOWN_CARDINALITY:
        return batches
    batches = _batched(records, batch_size)
    return batches.filter(lambda *batch: tf.shape(tf.nest.flatten(batch)[0])[0] == batch_size)


def _finished(batches: Any, tuned: bool) -> Any:
    import tensorflow as tf

    return _with_options(batches.prefetch(tf.data.AUTOTUNE), tuned)


def sized(epochs: Any, batches: int) -> Any:
    """Return epochs of which Keras knows the number of batches.

    An epoch that a checkpoint resumes has fewer, of which TensorFlow would make an error. So the iterators are those of
    the epochs themselves.
    """
    import tensorflow as tf

    known = epochs.apply(tf.data.experimental.assert_cardinality(batches))

    class Sized(type(known)):  # type: ignore[misc]
        def __iter__(self) -> Any:
            return iter(epochs)

    known.__class__ = Sized
    return known


def _with_options(dataset: Any, tuned: bool) -> Any:
    """Set the options of a rank's batches; whether they are autotuned was the user's choice for the records."""
    import tensorflow as tf

    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    # The tuner's thread sleeps for longer and longer, and the end of an iterator often waits until it wakes: in
    # TensorFlow 2.21 an epoch of 2 s took 0.5 s more, three times out of four. Without it as many elements are worked
    # on at once as there are processors.
    options.autotune.enabled = tuned
    return dataset.with_options(options)
