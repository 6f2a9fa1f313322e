"""What the ranks of a synchronous strategy do together: ``checks.py tf_keras|keras FOLDER``, on every rank.

One program for all, since importing TensorFlow takes longer than most checks. Each ``check_`` function is one check;
the first that fails ends the program.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

FLAVOUR, FOLDER = sys.argv[1], Path(sys.argv[2])
LEGACY = FLAVOUR == "tf_keras"
os.environ["TF_USE_LEGACY_KERAS"] = "1" if LEGACY else "0"


class Stopped(Exception):
    """What the script's own handler of SIGTERM raises."""


def on_term(number: int, frame: object) -> None:
    raise Stopped


signal.signal(signal.SIGTERM, on_term)

import numpy as np  # noqa: E402 - after the environment is set

from container import distributed  # noqa: E402

cluster = distributed.init(timeout=100)

import tensorflow as tf  # noqa: E402 - init() comes first

from container.checkpoint import keras_compat  # noqa: E402
from container.distributed.core.weight_check import Guard, digest  # noqa: E402
from container.distributed.tensorflow import optimizers  # noqa: E402
from container.distributed.tensorflow.callbacks import KerasCallback  # noqa: E402
from container.distributed.tensorflow.collectives import HorovodTensors  # noqa: E402

keras = tf.keras
layers = keras.layers
RANK, SIZE = cluster.rank, cluster.size
#: Compared after this many steps, all of them.
STEPS, BATCH = 6, 8

rng = np.random.default_rng(0)
X = rng.normal(size=(SIZE * STEPS * BATCH, 6)).astype(np.float32)
Y = (X[:, :1] * 2 + np.sin(X[:, 1:2])).astype(np.float32)


def records() -> Any:
    """All records."""
    return tf.data.Dataset.from_tensor_slices((X, Y))


def build(seed: int = 0, *, normalize: bool = False) -> Any:
    """A model; with another seed on each rank unless it is given."""
    keras.utils.set_random_seed(seed)
    middle = [layers.BatchNormalization()] if normalize else []
    return keras.Sequential([layers.Input([6]), layers.Dense(16, activation="relu"), *middle, layers.Dense(1)])


def numbers(model: Any) -> list[Any]:
    """The trainable weights' values."""
    return [np.asarray(weight.numpy()) for weight in model.trainable_variables]


class EqualAfterEveryStep(KerasCallback):
    """Compares all ranks' weights after each step by themselves, not by the guard's digest."""

    def __init__(self) -> None:
        self.steps = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.steps += 1
        for weight in numbers(self.model):
            every = cluster.collectives.gather_array(weight)
            assert (every == every[0]).all(), f"weights differ after step {self.steps}"


def refused(call: Callable[[], Any], *words: str, kind: type[Exception] = distributed.RefusedError) -> None:
    """It must be refused, in these words."""
    try:
        call()
    except kind as error:
        assert all(word in str(error) for word in words), error
    else:
        raise AssertionError(f"not refused: {words}")


def check_who() -> None:
    assert cluster.is_chief == (RANK == 0)
    assert distributed.init() is cluster
    assert f"rank {RANK} of {SIZE}" in repr(cluster)
    assert cluster.scale(0.01) == 0.01 * SIZE
    assert cluster.scale(0.01, op="adasum") == 0.01
    ranks = cluster.collectives.gather_array(np.array([RANK], np.int64))
    assert ranks[:, 0].tolist() == list(range(SIZE))


def check_objects() -> None:
    value = {"epoch": 3, "array": np.arange(5), "text": "größer", "long": "x" * 5000}
    found = cluster.broadcast_object(value if RANK == 0 else None)
    assert found["epoch"] == 3 and found["text"] == "größer" and found["array"].tolist() == [0, 1, 2, 3, 4]
    assert cluster.broadcast_object(None if RANK == 0 else "other") is None
    began = time.monotonic()
    if RANK == 0:
        time.sleep(0.3)
    cluster.barrier()
    assert time.monotonic() - began >= 0.25


def check_all_reduce() -> None:
    assert cluster.all_reduce(RANK + 1) == sum(range(1, SIZE + 1))
    found = cluster.all_reduce({"b": 1.0, "a": np.array([RANK, 1.0])}, op="average")
    assert found["b"] == 1.0 and found["a"].tolist() == [(SIZE - 1) / 2, 1.0]
    refused(lambda: cluster.all_reduce(1, op="avarage"), "avarage", "average", kind=ValueError)


def check_every_type_is_broadcast() -> None:
    for dtype in ("float16", "float32", "float64", "int8", "int32", "int64", "uint8", "uint32", "bool"):
        array = np.array([0, 1, 1 if dtype == "bool" else 100]).astype(dtype)
        mine = array if RANK == 0 else np.zeros_like(array)
        [found] = cluster.collectives.broadcast_arrays([mine])
        assert found.dtype == array.dtype and found.tolist() == array.tolist(), dtype


def check_shards() -> None:
    """Every record is somebody's, nobody's twice; equal steps though the shards are not."""
    for count in (0, 1, SIZE, 7 * SIZE + 1, 40 * SIZE - 1):
        shard = cluster.dataset(partial(tf.data.Dataset.range, count), global_batch_size=2 * SIZE)
        mine = [int(value) for batch in shard for value in batch]
        every = cluster.all_reduce(np.bincount(mine, minlength=max(1, count)))
        assert set(every.tolist()) <= {0.0, 1.0}
        assert every.sum() == count // SIZE // 2 * 2 * SIZE
        assert all(value % SIZE == RANK for value in mine)
    four = lambda: tf.data.Dataset.range(4 * SIZE)  # noqa: E731
    for parse in (lambda value: value * 10, distributed.vectorized(lambda values: tf.reshape(values, [-1]) * 10)):
        parsed = cluster.dataset(four, global_batch_size=2 * SIZE, parse=parse)
        assert [v for batch in parsed for v in batch.numpy().tolist()] == [(RANK + i * SIZE) * 10 for i in range(4)]
    shuffled = cluster.dataset(records, global_batch_size=SIZE, shuffle=100, seed=1)
    orders = [[float(x[0, 0]) for x, _ in shuffled] for _ in range(2)]
    assert orders[0] != orders[1] and sorted(orders[0]) == sorted(orders[1])
    if SIZE > 1:
        refused(lambda: cluster.dataset(records, global_batch_size=SIZE * 3 + 1), f"Use {3 * SIZE} or", kind=ValueError)
    refused(lambda: cluster.dataset(records, global_batch_size=SIZE, partition="shards"), "'shard'", kind=ValueError)
    assert cluster.steps_per_epoch(records, global_batch_size=SIZE) is None


def fit(model: Any, **options: Any) -> Any:
    """Train on shards with the cluster's callbacks and the comparison after every step."""
    equal = EqualAfterEveryStep()
    history = model.fit(
        cluster.dataset(records, global_batch_size=BATCH * SIZE),
        epochs=options.pop("epochs", 1),
        callbacks=[*cluster.callbacks(**options), equal],
        verbose=0,
    )
    assert equal.steps >= STEPS
    return history


def check_training_is_that_of_one_process() -> None:
    """Ranks' small batches make the steps that large batches make in one process."""
    model = build(seed=RANK)  # rank 0's weights are taken
    model.compile(cluster.optimizer(keras.optimizers.SGD(0.05, momentum=0.9)), loss="mse", metrics=["mae"])
    history = fit(model, epochs=2)
    own = build(seed=0)
    own.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss="mse", metrics=["mae"])
    # The n-th global batch is made of the ranks' n-th batches.
    expected = own.fit(X, Y, batch_size=BATCH * SIZE, shuffle=False, epochs=2, verbose=0)
    for ours, theirs in zip(numbers(model), numbers(own), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-6)
    np.testing.assert_allclose(history.history["mae"], expected.history["mae"], rtol=1e-3)


def check_adam_with_clipping_and_compression() -> None:
    for options in ({}, {"compression": "fp16"}):
        model = build(seed=RANK)
        optimizer = cluster.optimizer(keras.optimizers.Adam(0.01, clipnorm=0.5), **options)
        model.compile(optimizer, loss="mse")
        fit(model)
        if options and SIZE > 1:
            reduction = optimizers.reduction_of(optimizer)
            assert reduction is not None
            assert int(reduction.steps) == STEPS and int(reduction.whole_steps) == 0


def apply_once(gradients: list[Any], **options: Any) -> list[Any]:
    """What an optimizer makes of gradients that differ by rank: the change of weights at learning rate 1."""
    variables = [tf.Variable(tf.zeros_like(gradient)) for gradient in gradients]
    if not LEGACY:
        variables = [keras.Variable(np.zeros(gradient.shape, np.float32)) for gradient in gradients]
    optimizer = cluster.optimizer(keras.optimizers.SGD(1.0), **options)

    @tf.function
    def step() -> None:
        optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))

    optimizer.build(variables)
    step()
    return [-np.asarray(variable.numpy()) for variable in variables]


def check_compression_keeps_what_16_bits_cannot_hold() -> None:
    share = (RANK + 1) / SIZE
    mean = (SIZE + 1) / 2 / SIZE
    for values in ([1e6, 2e6], [1e-8, 3e-8], [1e6, 1e-8], [1e30, 1e-30], [0.0, 0.0], [1e-20, 0.0], [65504.0 * 2]):
        whole = np.array(values, np.float32)
        [found] = apply_once([tf.constant(whole * np.float32(share))], compression="fp16")
        np.testing.assert_allclose(found, whole * mean, rtol=2e-3), values
    # In one act, gradients of very different sizes, each with a scale of its own.
    found = apply_once([tf.constant([1e6 * share]), tf.constant([[1e-8 * share]])], compression="fp16")
    np.testing.assert_allclose([found[0][0], found[1][0, 0]], [1e6 * mean, 1e-8 * mean], rtol=2e-3)
    # What one rank cannot say is not made up by the others.
    [found] = apply_once([tf.constant([float("nan") if RANK == 0 else 1.0, 1.0])], compression="fp16")
    assert np.isnan(found[0]) and found[1] == 1.0
    [found] = apply_once([tf.constant([float("inf") if RANK == SIZE - 1 else 1.0])], compression="fp16")
    assert np.isinf(found[0])


def check_sum_and_sparse_and_missing() -> None:
    [found] = apply_once([tf.constant([float(RANK), 1.0])], op="sum")
    assert found.tolist() == [SIZE * (SIZE - 1) / 2, SIZE]
    sparse = tf.IndexedSlices(tf.constant([[1.0, 1.0]]), tf.constant([RANK]), tf.constant([SIZE, 2]))
    reduction = optimizers.Reduction(cluster.collectives, op="sum", compression=None, learning_rate=None)
    dense, nothing = reduction([sparse, None])
    assert nothing is None and np.asarray(dense).tolist() == [[1.0, 1.0]] * SIZE


def check_news_of_rank_0_come_with_the_gradients() -> None:
    if not isinstance(cluster.collectives, HorovodTensors):
        return
    import horovod.tensorflow as hvd

    for op in ("average", "sum", "adasum"):
        if op == "adasum" and SIZE & (SIZE - 1):
            continue
        collectives = HorovodTensors(hvd, host_updates=True)
        host_updates = collectives.host_updates
        assert host_updates is not None
        optimizer = optimizers.distribute(keras.optimizers.SGD(1.0), collectives, op=op)
        weight = tf.Variable([0.0, 0.0])
        keras_compat.build_optimizer(optimizer, [weight])

        @tf.function
        def step(optimizer: Any = optimizer, weight: Any = weight) -> None:
            optimizer.apply_gradients([(tf.constant([1.0, 1.0]), weight)])

        assert host_updates.look() is None, "nothing was sent yet"
        step()
        assert host_updates.look() is False and host_updates.look() is False
        if RANK == 0:
            host_updates.send()
        step()
        assert host_updates.look() is True
        host_updates.forget()
        assert host_updates.look() is None
        step()
        assert host_updates.look() is False
        assert weight.numpy()[0] == -3.0 * (SIZE if op == "sum" else 1)


def check_adasum() -> None:
    optimizer = keras.optimizers.SGD(0.05)
    if cluster.strategy == "collective_all_reduce":
        refused(lambda: cluster.optimizer(optimizer, op="adasum"), "Horovod", "adasum")
    elif SIZE > 1:
        model = build(seed=RANK)
        model.compile(cluster.optimizer(optimizer, op="adasum"), loss="mse")
        fit(model)
        # Equal gradients: their average. Orthogonal ones: their sum.
        [found] = apply_once([tf.constant([3.0, 4.0])], op="adasum")
        np.testing.assert_allclose(found, [3.0, 4.0], rtol=1e-6)
        [found] = apply_once([tf.constant([float(rank == RANK) for rank in range(SIZE)])], op="adasum")
        np.testing.assert_allclose(found, np.ones(SIZE), rtol=1e-6)
    refused(lambda: cluster.optimizer(keras.optimizers.SGD(), op="adasum", compression="fp16"), "one of these")


def check_guard() -> None:
    """A script that forgets to wrap its optimizer fails, and is told why."""
    if SIZE == 1:
        return
    model = build()
    model.compile(keras.optimizers.SGD(0.05), loss="mse")
    refused(
        lambda: fit_plainly(model),
        "after step 1", "rank 0 | rank 1", "cluster.optimizer(", kind=distributed.WeightsDifferError,
    )  # fmt: skip
    # So does one whose learning rate is so small that one would hardly see it.
    model = build()
    model.compile(keras.optimizers.SGD(1e-6), loss="mse")
    refused(lambda: fit_plainly(model), "cluster.optimizer(", kind=distributed.WeightsDifferError)
    # By hand.
    refused(lambda: cluster.check_weights(model), "differ now", kind=distributed.WeightsDifferError)
    cluster.broadcast(model)
    cluster.check_weights(model)
    if cluster.strategy == "mpi":
        check_horovods_own_optimizer()


def check_horovods_own_optimizer() -> None:
    import horovod.tensorflow.keras as hvd

    if LEGACY:
        model = build(seed=RANK)
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.05)), loss="mse")
        fit(model)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.05))
        model = build()
        model.compile(optimizer, loss="mse")
        refused(lambda: fit_plainly(model), "silently reduces nothing under Keras 3")


def fit_plainly(model: Any) -> None:
    data = cluster.dataset(records, global_batch_size=BATCH * SIZE)
    model.fit(data, epochs=1, callbacks=cluster.callbacks(), verbose=0)


def check_guard_tells_rounding_from_training_apart() -> None:
    """Unlike processors may round differently; that is no training apart."""
    if SIZE == 1:
        return
    guard = Guard(cluster.collectives)
    weight = tf.Variable(np.linspace(0, 1, 100, dtype=np.float32))
    guard.start([weight])
    weight.assign_add(np.linspace(0.1, 0.3, 100, dtype=np.float32))
    guard.check([weight])
    weight.assign_add(np.full(100, 1e-6 * RANK, np.float32))
    guard.check([weight])
    weight.assign_add(np.full(100, 0.1 * RANK, np.float32))
    refused(lambda: guard.check([weight], step=3), "after step 3", kind=distributed.WeightsDifferError)
    assert digest([weight]) != digest([tf.Variable(weight + 1e-7)])


def check_moving_averages_and_validation() -> None:
    """Each rank has its own moving averages until the epoch ends; validation counts each record once."""
    model = build(seed=RANK, normalize=True)
    model.compile(cluster.optimizer(keras.optimizers.SGD(0.05)), loss="mse", metrics=["mae"])
    odd = SIZE * 5 + 1  # the shards are unequal

    def held_out() -> Any:
        return tf.data.Dataset.from_tensor_slices((X[:odd], Y[:odd]))

    history = fit(model, validation=held_out, validation_batch_size=4).history
    for variable in model.non_trainable_variables:
        every = cluster.collectives.gather_array(np.asarray(variable.numpy()))
        assert (every == every[0]).all(), variable.name
    expected = model.evaluate(X[:odd], Y[:odd], batch_size=odd, verbose=0, return_dict=True)
    np.testing.assert_allclose(history["val_loss"], [expected["loss"]], rtol=1e-4)
    np.testing.assert_allclose(history["val_mae"], [expected["mae"]], rtol=1e-4)
    # Fewer records than ranks.
    scores = cluster.evaluate(model, lambda: held_out().take(1))
    alone = model.evaluate(X[:1], Y[:1], verbose=0, return_dict=True)
    np.testing.assert_allclose(scores["loss"], alone["loss"], rtol=1e-4)


def check_warm_up() -> None:
    seen: list[float] = []

    class Watch(KerasCallback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            seen.append(float(np.asarray(self.model.optimizer.learning_rate)))

    model = build()
    model.compile(cluster.optimizer(keras.optimizers.SGD(cluster.scale(0.01))), loss="mse")
    model.fit(
        cluster.dataset(records, global_batch_size=BATCH * SIZE).apply(
            tf.data.experimental.assert_cardinality(STEPS)
        ),
        epochs=3,
        callbacks=[*cluster.callbacks(warmup_epochs=2), Watch()],
        verbose=0,
    )  # fmt: skip
    steps = np.minimum(1.0, np.arange(3 * STEPS) / (2 * STEPS))
    np.testing.assert_allclose(seen, 0.01 + 0.01 * (SIZE - 1) * steps, rtol=1e-5)


def check_a_rate_stays_when_warm_up_is_over() -> None:
    """A training that goes on after its warm-up keeps the rate that a callback or a checkpoint gave it."""
    model = build()
    model.compile(cluster.optimizer(keras.optimizers.SGD(cluster.scale(0.05))), loss="mse")
    keras_compat.build_optimizer(model.optimizer, model.trainable_variables)

    class Lower(KerasCallback):
        batch_hooks = False

        def on_train_begin(self, logs: Any = None) -> None:
            keras_compat.set_learning_rate(self.model.optimizer, 0.001)

    shard = cluster.dataset(records, global_batch_size=SIZE * BATCH)
    calls = [*cluster.callbacks(warmup_epochs=1), Lower()]
    model.fit(shard, initial_epoch=2, epochs=3, callbacks=calls, verbose=0)
    assert np.isclose(float(model.optimizer.learning_rate.numpy()), 0.001)


def check_schedules_stay() -> None:
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    model = build(seed=RANK)
    model.compile(cluster.optimizer(keras.optimizers.SGD(schedule)), loss="mse")
    fit(model)
    if SIZE > 1:
        refused(lambda: fit(model, warmup_epochs=1), "schedule")
    refused(lambda: cluster.scale(schedule), "number", kind=TypeError)


def check_a_model_built_by_its_first_step() -> None:
    keras.utils.set_random_seed(RANK)
    model = keras.Sequential([layers.Dense(8, activation="relu"), layers.Dense(1)])
    model.compile(cluster.optimizer(keras.optimizers.Adam(0.01)), loss="mse")
    data = cluster.dataset(records, global_batch_size=BATCH * SIZE)
    model.fit(data, epochs=2, callbacks=cluster.callbacks(), verbose=0)
    cluster.check_weights(model)


def check_a_loop_of_ones_own() -> None:
    model = build(seed=RANK)
    optimizer = cluster.optimizer(keras.optimizers.Adam(0.01))
    optimizer.build(model.trainable_variables)
    cluster.broadcast([*model.variables, *optimizer.variables])

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    for x, y in cluster.dataset(records, global_batch_size=BATCH * SIZE):
        step(x, y)
        cluster.check_weights(model)


def check_several_steps_per_execution() -> None:
    model = build(seed=RANK)
    model.compile(cluster.optimizer(keras.optimizers.Adam(0.01)), loss="mse", steps_per_execution=3)
    data = cluster.dataset(records, global_batch_size=BATCH * SIZE, repeat=True)

    def train() -> None:
        model.fit(data, steps_per_epoch=STEPS, epochs=2, callbacks=cluster.callbacks(), verbose=0)

    if cluster.strategy == "collective_all_reduce" and not LEGACY:
        refused(train, "steps_per_execution=3", "loop")
        return
    train()
    cluster.check_weights(model)


def check_mixed_precision() -> None:
    """Whether a step is skipped is decided on all ranks alike."""
    model = build(seed=RANK)
    scaled = keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(0.05))
    model.compile(cluster.optimizer(scaled), loss="mse")
    fit(model)


def check_loss_scaling_around_ours_is_refused() -> None:
    """An overflow on one rank would let it skip the reduction in which the others wait."""
    if SIZE == 1:
        return
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        model = build()
        model.compile(cluster.optimizer(keras.optimizers.SGD(0.05)), loss="mse")
        refused(lambda: fit(model), "LossScaleOptimizer", "mixed_float16")
        model = build()
        scaled = keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(0.05))
        model.compile(cluster.optimizer(scaled), loss="mse")
        x = np.where(RANK == 0, np.float32(1e30), np.float32(1)) * X  # overflows on one rank only
        model.fit(x, Y, batch_size=BATCH, shuffle=False, verbose=0)
    finally:
        keras.mixed_precision.set_global_policy("float32")


def check_a_rank_that_stops_alone() -> None:
    """The others are told, instead of waiting in the next step."""
    if SIZE == 1:
        return

    class Stop(KerasCallback):
        batch_hooks = False

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.stop_training = RANK == 0

    model = build()
    model.compile(cluster.optimizer(keras.optimizers.SGD(0.05)), loss="mse")
    shard = cluster.dataset(records, global_batch_size=SIZE * BATCH)
    calls = [*cluster.callbacks(), Stop()]
    refused(
        lambda: model.fit(shard, epochs=3, callbacks=calls, verbose=0),
        "rank 0 stopped after 1 epochs",
        "EarlyStopping",
        kind=distributed.DistributedError,
    )


def check_what_cannot_be() -> None:
    refused(lambda: cluster.dataset(records(), global_batch_size=SIZE), "lambda", kind=TypeError)
    refused(lambda: cluster.callbacks("checkpoints"), "Checkpointer", kind=TypeError)
    refused(lambda: cluster.optimizer(keras.optimizers.SGD(), compression="fp8"), "fp16", kind=ValueError)
    refused(lambda: cluster.optimizer(keras.optimizers.SGD(), op="mean"), "average", kind=ValueError)
    refused(lambda: cluster.optimizer(cluster.optimizer(keras.optimizers.SGD())), "twice")
    refused(lambda: cluster.optimizer(tf.compat.v1.train.GradientDescentOptimizer(0.1)), "tf.compat.v1")
    refused(lambda: cluster.report(loss="high"), "loss", kind=TypeError)
    refused(lambda: cluster.callbacks(warmup_epochs=-1), "warmup_epochs", kind=ValueError)
    few = cluster.dataset(lambda: records().take(SIZE), global_batch_size=2 * SIZE, remainder="drop")
    model = build()
    model.compile(cluster.optimizer(keras.optimizers.SGD(0.05)), loss="mse")
    refused(lambda: model.fit(few, callbacks=cluster.callbacks(), verbose=0), "", kind=Exception)
    if SIZE == 1:
        return
    model = build()
    model.compile(cluster.optimizer(keras.optimizers.SGD(0.05)), loss="mse", jit_compile=True)
    if LEGACY:
        refused(lambda: fit(model), "XLA")
    else:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            fit(model)
        assert any("XLA" in str(warning.message) for warning in said)


def check_a_saved_model_knows_nothing_of_us() -> None:
    model = build()
    model.compile(cluster.optimizer(keras.optimizers.Adam(0.01)), loss="mse")
    fit(model)
    folder = FOLDER / FLAVOUR / cluster.strategy
    exported = cluster.export(model, folder)
    if not cluster.is_chief:
        assert exported is None
        cluster.barrier()
        return
    assert exported == folder / "1" and [entry.name for entry in folder.iterdir()] == ["1"]
    again = cluster.export(model, folder)
    assert again == exported
    served = tf.saved_model.load(str(exported))
    signature = served.signatures["serving_default"]
    found = next(iter(signature(tf.constant(X[:3])).values()))
    np.testing.assert_allclose(np.asarray(found), np.asarray(model(X[:3])), rtol=1e-4)
    if cluster.strategy == "collective_all_reduce":
        cluster.barrier()
        return  # a saved model says nothing of the strategy, and looking at it takes seconds
    model.save(FOLDER / "whole.keras")  # which the test reads
    cluster.barrier()


def check_sigterm_is_the_scripts_own() -> None:
    """TensorFlow's coordination service would swallow it."""
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)
    except Stopped:
        return
    raise AssertionError("SIGTERM was swallowed")


def main() -> None:
    chosen = sys.argv[3:]
    for name, check in list(globals().items()):
        if name.startswith("check_") and name != "check_horovods_own_optimizer" and (not chosen or name in chosen):
            began = time.monotonic()
            check()
            if RANK == 0:
                print(f"{name} {time.monotonic() - began:.2f} s", flush=True)
    print(f"rank {RANK}: all passed", flush=True)


if __name__ == "__main__":
    main()
