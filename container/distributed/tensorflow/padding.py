"""Add weights to the records of batches, for ranks that have different numbers of records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from container.distributed.core.step_alignment import Agreement

NO_WEIGHTS = (
    "remainder='pad' needs records of the form (x, y) or (x, y, sample_weight), because it gives weights to the "
    "records; got {}. Use parse=…, or remainder='drop'."
)


def can_be_spare(records: Any, size: int) -> int:
    """Return how many incomplete groups there can be if records are divided into groups of ``size``.

    The result is 0 if the dataset knows its number of records and this number is a multiple of ``size``. Otherwise the
    result is 1.
    """
    known = int(records.cardinality())
    return 0 if known >= 0 and known % size == 0 else 1


def deal(group: tuple[Any, ...], rank: int, size: int) -> Any:
    """Return this rank's record of a group. A group has at most one record for each rank. If the group has no record
    for this rank, return a copy of the group's first record.

    Args:
        group: A group of at most ``size`` records.
        rank: The number of this rank.
        size: Number of ranks.

    Returns:
        The record, and a pair. The pair consists of 1 for this rank's own record or 0 for a copy, and the number of
        records in the group.
    """
    import tensorflow as tf

    there = tf.shape(tf.nest.flatten(group, expand_composites=True)[0])[0]
    mine = tf.where(rank < there, rank, 0)
    element = unpack(tf.nest.map_structure(lambda of_all: of_all[mine], group))
    return element, (tf.cast(rank < there, tf.int32), there)


def deal_steps(records: Any, rank: int, size: int, per_step: int) -> Any:
    """Assign the records of each step to the ranks in groups, as :func:`deal` does.

    A step's number of records need not be a multiple of the number of ranks. The last group of a step may then be
    smaller than the other groups.

    Args:
        records: All records, in the same order on every rank.
        rank: The number of this rank.
        size: Number of ranks.
        per_step: Number of records in one step of all ranks together.
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
    """Fill a batch with copies of a record, up to ``size`` rows, and add weights.

    With the weights, the mean of the filled batch equals the mean of the original rows.
    """
    import tensorflow as tf

    rows = tf.shape(tf.nest.flatten(batch, expand_composites=True)[0])[0]
    # TensorFlow must not know the size in advance. If Keras 3 does not know the number of batches, it requests one
    # batch too many. If the size was known, metrics would also count that batch.
    places = tf.range(tf.maximum(rows, size))
    own = places < rows
    places = tf.where(own, places, 0)
    filled = tf.nest.map_structure(lambda of_all: tf.gather(of_all, places), batch)
    return _with_weights(filled, tf.cast(own, tf.float32) * (size / tf.cast(rows, tf.float32)))


def weighable(spec: Any) -> bool:
    """Return whether Keras accepts weights for elements with this specification."""
    return isinstance(spec, tuple) and len(spec) in (2, 3)


def weigh_dealt(element: Any, of_all: tuple[Any, Any], size: int) -> Any:
    """Add weights to a batch, so that the mean over all ranks equals the mean of the real records.

    Each rank computes its weights without communication. This is possible because the batches of all ranks have the
    same number of elements and, if records are not shuffled, consist of the same groups.

    Args:
        element: This rank's batch.
        of_all: The pairs of :func:`deal` for the records of the batch, as two tensors. The first contains 1 for an own
            record and 0 for a copy. The second contains the number of records in the record's group.
        size: Number of ranks.
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
    """Return batches for ranks that have different numbers of records. For each batch, the ranks exchange their numbers
    of records. The batches have weights unless ``drop`` is set.

    Args:
        records: This rank's records.
        agreement: The connection over which the ranks exchange their numbers of records.
        batch_size: Number of records in a batch of this rank.
        drop: Whether to end the iteration with the last batch that is full on every rank. If false, the iteration ends
            when no rank has records, and a rank that has no record left adds a record of weight zero.
    """
    import numpy as np
    import tensorflow as tf

    spec = records.element_spec
    numbers: dict[int, int] = {}

    def begin() -> Any:
        iteration = agreement.begin()
        numbers[iteration] = 0
        try:
            yield np.int64(iteration)
        finally:  # the iterator has ended, or has been garbage-collected
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
    # Without these empty batches, a rank without further records would leave the iteration, which ends it for all
    # ranks.

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
    """Return the element of a tuple with only one element. Return any other tuple unchanged.

    ``Dataset.map()`` calls a function that takes ``*element`` with a tuple, even if the dataset's elements are single
    tensors. This function restores the original element.
    """
    return group[0] if len(group) == 1 else group
