"""Weighted batches, for ranks with unequal numbers of records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from container.distributed.core.step_alignment import Agreement

NO_WEIGHTS = (
    "remainder='pad' needs records of the form (x, y) or (x, y, sample_weight), because it gives weights to the "
    "records; got {}. Use parse=…, or remainder='drop'."
)


def can_be_spare(records: Any, size: int) -> int:
    """Return whether a last group of records may have fewer than ``size``: 0 if the dataset knows that it does not."""
    known = int(records.cardinality())
    return 0 if known >= 0 and known % size == 0 else 1


def deal(group: tuple[Any, ...], rank: int, size: int) -> Any:
    """Return this rank's record of a group, or a copy of the first, and (whether it is its own, how many the group
    has).
    """
    import tensorflow as tf

    there = tf.shape(tf.nest.flatten(group, expand_composites=True)[0])[0]
    mine = tf.where(rank < there, rank, 0)
    element = unpack(tf.nest.map_structure(lambda of_all: of_all[mine], group))
    return element, (tf.cast(rank < there, tf.int32), there)


def deal_steps(records: Any, rank: int, size: int, per_step: int) -> Any:
    """Do as :func:`deal` where a step's records are no multiple of the ranks: each step ends with a smaller group.

    Args:
        records: All records, in the same order on every rank.
        rank: This rank.
        size: The number of ranks.
        per_step: Records of a step of all ranks.
    """
    import tensorflow as tf

    def groups_of(*step: Any) -> Any:
        there = tf.shape(tf.nest.flatten(step, expand_composites=True)[0])[0]
        first = tf.range(0, there, size)
        of_group = tf.minimum(there - first, size)
        mine = tf.where(rank < of_group, first + rank, first)
        own = tf.nest.map_structure(lambda of_all: tf.gather(of_all, mine), step)
        return unpack(own), (tf.cast(rank < of_group, tf.int32), of_group)

    return records.batch(per_step).map(groups_of, num_parallel_calls=tf.data.AUTOTUNE).unbatch()


def fill(batch: tuple[Any, ...], size: int) -> Any:
    """Fill a batch up to ``size`` rows, with weights that make its mean that of its own rows."""
    import tensorflow as tf

    rows = tf.shape(tf.nest.flatten(batch, expand_composites=True)[0])[0]
    # A size that is not known beforehand: Keras 3 asks for one batch too many where it does not know their number, and
    # metrics count by a known size.
    places = tf.range(tf.maximum(rows, size))
    own = places < rows
    places = tf.where(own, places, 0)
    filled = tf.nest.map_structure(lambda of_all: tf.gather(of_all, places), batch)
    return _with_weights(filled, tf.cast(own, tf.float32) * (size / tf.cast(rows, tf.float32)))


def weighable(spec: Any) -> bool:
    """Return whether Keras would take weights beside such elements."""
    return isinstance(spec, tuple) and len(spec) in (2, 3)


def weigh_dealt(element: Any, of_all: tuple[Any, Any], size: int) -> Any:
    """Give a batch weights that make the mean over all ranks that of the real records.

    Every rank's batch has as many elements, and where records are not shuffled the same groups.
    """
    import tensorflow as tf

    own, there = of_all
    # size × elements of a rank's batch ÷ records in the batches of all ranks
    share = tf.cast(size * tf.size(there), tf.float32) / tf.cast(tf.reduce_sum(there), tf.float32)
    return _with_weights(element, tf.cast(own, tf.float32) * share)


def _with_weights(element: Any, weights: Any) -> Any:
    import tensorflow as tf

    if len(element) == 2:
        return (*element, weights)
    x, y, given = element
    shape = tf.concat([tf.shape(weights), tf.ones([tf.rank(given) - 1], tf.int32)], 0)
    return x, y, given * tf.cast(tf.reshape(weights, shape), given.dtype)


def agreed(records: Any, agreement: Agreement, *, batch_size: int, drop: bool) -> Any:
    """Return batches of records of which each rank has a different number."""
    import numpy as np
    import tensorflow as tf

    spec = records.element_spec
    numbers: dict[int, int] = {}

    def begin() -> Any:
        iteration = agreement.begin()
        numbers[iteration] = 0
        try:
            yield np.int64(iteration)
        finally:  # the iterator is done, or nobody wants it any more
            del numbers[iteration]
            agreement.leave(iteration)

    def tell(iteration: Any, count: Any) -> Any:
        number = numbers[int(iteration)]
        numbers[int(iteration)] += 1
        total, full = agreement.batch(int(iteration), number, int(count), int(count) == batch_size)
        go_on = full == agreement.size if drop else total > 0
        return np.array([total if go_on else 0], np.int64)

    def nothing(leaf: Any) -> Any:
        shape = leaf.shape.as_list() if leaf.shape.rank is not None else [None]
        if None in shape:
            raise ValueError(
                "the shapes of records must be known, because a rank that has no records left adds records of weight "
                f"zero; got {leaf}. Use tf.ensure_shape in parse, or remainder='drop'."
            )
        return tf.zeros([1, *shape], leaf.dtype)

    def count_of(*batch: Any) -> Any:
        return tf.shape(tf.nest.flatten(batch, expand_composites=True)[0])[0]

    batches = records.batch(batch_size).map(lambda *batch: (unpack(batch), count_of(*batch)))
    if not drop:
        empty = tf.data.Dataset.from_tensors((tf.nest.map_structure(nothing, spec), tf.constant(0)))
        batches = batches.concatenate(empty.repeat())
    # Without these, a rank at its end leaves the iteration, which ends it for all.

    def of_iteration(iteration: Any) -> Any:
        def told(batch: Any, count: Any) -> Any:
            total = tf.ensure_shape(tf.numpy_function(tell, [iteration, count], tf.int64), [1])[0]
            return batch, count, total

        return batches.map(told).take_while(lambda batch, count, total: total > 0)

    iterations = tf.data.Dataset.from_generator(begin, output_signature=tf.TensorSpec([], tf.int64))
    agreed = iterations.flat_map(of_iteration)
    if drop:
        return agreed.map(lambda batch, count, total: batch)

    def weigh(batch: Any, count: Any, total: Any) -> Any:
        rows = count_of(batch)
        share = tf.cast(agreement.size * rows, tf.float32) / tf.cast(total, tf.float32)
        return _with_weights(batch, tf.fill([rows], tf.where(count > 0, share, 0.0)))

    return agreed.map(weigh)


def unpack(group: tuple[Any, ...]) -> Any:
    """Keep a dataset of single tensors as one: map() would make tuples of one of it."""
    return group[0] if len(group) == 1 else group
