"""Checks of ``cluster.dataset`` with shares of all kinds; run under mpirun, with TF_CONFIG, or alone. ``shares.py``."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import tensorflow as tf

from container import distributed

cluster = distributed.init()

RANK, SIZE = cluster.rank, cluster.size
BATCH = 4


def numbers(first: int, last: int) -> tf.data.Dataset:
    """Records (x, y) whose x begins with their number; nobody knows how many there are."""
    found = tf.data.Dataset.range(first, last).map(
        lambda n: (tf.stack([tf.cast(n, tf.float32), tf.cast(n % 7, tf.float32)]), tf.cast(n % 3, tf.float32))
    )
    return found.filter(lambda x, y: True)


def of_rank(counts: list[int]) -> tf.data.Dataset:
    return numbers(sum(counts[:RANK]), sum(counts[: RANK + 1]))


def seen(batches: Any, total: int) -> np.ndarray[Any, Any]:
    """How often each record was seen with a weight, by all ranks; all must have made the same number of steps."""
    mine, steps = [], 0
    for x, _, *weights in batches:
        steps += 1
        counted = weights[0].numpy() > 0 if weights else np.ones(len(x), bool)
        mine += [int(value) for value in x.numpy()[counted][:, 0]]
    all_steps = cluster.collectives.gather_array(np.array([steps]))
    assert (all_steps == steps).all(), all_steps
    # An empty array would be too little for TensorFlow.
    return cluster.all_reduce(np.bincount(mine, minlength=max(1, total)))[:total]


def check_every_record_once_whatever_the_counts() -> None:
    for count in (0, 1, SIZE, 7 * SIZE + 1, 40 * SIZE - 1):
        for shuffle in (None, 50):
            batches = cluster.dataset(
                lambda count=count: numbers(0, count), global_batch_size=BATCH * SIZE, shuffle=shuffle
            )
            assert (seen(batches, count) == 1).all() and seen(batches, count).sum() == count
    uneven = [3, 0, 17, 8, 1][:SIZE]
    for counts in (uneven, [0] * SIZE, [BATCH] * SIZE, [0] * (SIZE - 1) + [9]):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            batches = cluster.dataset(
                lambda counts=counts: of_rank(counts), global_batch_size=BATCH * SIZE, holds="rank", shuffle=10
            )
            for _ in range(2):
                found = seen(batches, sum(counts))
                assert (found == 1).all() and found.sum() == sum(counts), (counts, found)
        texts = [str(warning.message) for warning in said]
        if RANK == 0 and counts is uneven and SIZE > 1:
            assert sum("shares of the data are uneven" in text for text in texts) == 1, texts
        # Left early by all ranks, at the same step, and begun again.
        next(iter(batches.take(1)), None)
        assert seen(batches, sum(counts)).sum() == sum(counts)
    dropped = cluster.dataset(lambda: of_rank(uneven), global_batch_size=BATCH * SIZE, holds="rank", remainder="drop")
    assert seen(dropped, sum(uneven)).sum() == min(uneven) // BATCH * BATCH * SIZE
    host = cluster.dataset(lambda: numbers(0, 101), global_batch_size=BATCH * SIZE, holds="host")
    assert (seen(host, 101) == 1).all()  # all ranks are on one host here


def check_the_gradient_is_that_of_the_real_records() -> None:
    """Weights after an epoch equal those of one process that trains on the same records in the same batches."""
    uneven = [6, 1, 0][:SIZE]
    total = sum(uneven)
    for name, options, make in (
        ("all", {}, lambda: numbers(0, total)),
        ("rank", {"holds": "rank"}, lambda: of_rank(uneven)),
    ):
        batches = cluster.dataset(make, global_batch_size=BATCH * SIZE, **options)
        assert name == "all" or SIZE == 1 or len(batches.element_spec) == 3
        steps = [[] for _ in range(3)]  # what all ranks had at each step
        for number, (x, y, *weights) in enumerate(batches):
            real = weights[0].numpy() > 0 if weights else np.ones(len(x), bool)
            steps[number] = list(zip(x.numpy()[real].tolist(), y.numpy()[real].tolist(), strict=True))
        model = build()
        model.compile(cluster.optimizer(tf.keras.optimizers.SGD(0.01)), loss="mse")
        model.fit(batches, epochs=2, verbose=0, callbacks=cluster.callbacks())
        alone = build()
        optimizer = tf.keras.optimizers.SGD(0.01)
        gathered = [_everybodys(step) for step in steps]
        for _ in range(2):
            for step in gathered:
                if step:
                    x, y = tf.constant([a for a, _ in step]), tf.constant([[b] for _, b in step])
                    with tf.GradientTape() as tape:
                        loss = tf.reduce_mean(tf.square(alone(x) - y))
                    optimizer.apply_gradients(
                        zip(tape.gradient(loss, alone.trainable_variables), alone.trainable_variables, strict=True)
                    )
        for mine, theirs in zip(model.get_weights(), alone.get_weights(), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-6, err_msg=name)


def _everybodys(step: list[Any]) -> list[Any]:
    """All ranks' records of a step."""
    table = np.full((8, 4), np.nan)
    for row, (x, y) in enumerate(step):
        table[row] = [*x, y, 0]
    rows = cluster.collectives.gather_array(table).reshape(-1, 4)
    return [([float(a), float(b)], float(y)) for a, b, y, _ in rows if not np.isnan(a)]


def build() -> Any:
    tf.keras.utils.set_random_seed(1)
    return tf.keras.Sequential([tf.keras.layers.Input([2]), tf.keras.layers.Dense(3, "relu"), tf.keras.layers.Dense(1)])


def check_shuffle_and_what_cannot_be() -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        batches = cluster.dataset(
            lambda: numbers(0, 40 * SIZE), global_batch_size=SIZE, partition="shuffle", shuffle=1000, seed=3
        )
    assert SIZE == 1 or any("several ranks may see the same record" in str(warning.message) for warning in said)
    found = [int(x[0, 0]) for x, _ in batches]
    assert len(found) == 40 == len(set(found))
    for options, word in (
        ({"partition": "shuffle"}, "needs shuffle="),
        ({"partition": "shuffled"}, "Did you mean 'shuffle'"),
        ({"remainder": "keep"}, "remainder"),
        ({"holds": "hosts"}, "Did you mean 'host'"),
        ({"partition": "shuffle", "shuffle": 9, "holds": "host"}, "FullyReplicated"),
    ):
        try:
            cluster.dataset(lambda: numbers(0, 9), global_batch_size=SIZE, **options)
        except (ValueError, distributed.RefusedError) as error:
            assert word in str(error), error
        else:
            raise AssertionError(f"not refused: {options}")


for name, check in list(globals().items()):
    if name.startswith("check_"):
        check()
        print(name, "ok", flush=True)
