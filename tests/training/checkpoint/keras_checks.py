"""What the Checkpointer does to real Keras models: ``python keras_checks.py tf_keras|keras FOLDER``.

A program of its own, since a process can have one Keras only. Each ``check_`` function is one check; the first that
fails ends the program.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

FLAVOUR, FOLDER = sys.argv[1], Path(sys.argv[2])
LEGACY = FLAVOUR == "tf_keras"
os.environ["TF_USE_LEGACY_KERAS"] = "1" if LEGACY else "0"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import numpy as np  # noqa: E402 - after the environment is set
import tensorflow as tf  # noqa: E402

from container.checkpoint import Checkpointer, CheckpointMismatchError  # noqa: E402
from container.checkpoint.state import KerasState  # noqa: E402

keras = tf.keras
layers = keras.layers

BATCHES, BATCH = 8, 4
_rng = np.random.default_rng(0)
X = _rng.normal(size=(BATCHES * BATCH, 6)).astype(np.float32)
Y = X[:, :1] * 2 + 1


def make_model(optimizer: Any = None, *, dropout: bool = not LEGACY, **compile_options: Any) -> Any:
    """A small model; Keras 3 can also continue its random numbers."""
    keras.utils.set_random_seed(1)
    middle = [layers.Dropout(0.3)] if dropout else []
    model = keras.Sequential(
        [layers.Input([6]), layers.Dense(8, activation="relu"), layers.BatchNormalization(), *middle, layers.Dense(1)]
    )
    model.compile(optimizer or keras.optimizers.Adam(0.01), "mse", **compile_options)
    return model


def dataset() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH)


def values(model: Any) -> list[Any]:
    groups = KerasState(model).groups()
    return [np.array(slot.read()) for slots in groups.values() for slot in slots]


def assert_same(ours: Any, theirs: Any) -> None:
    pairs = list(zip(values(ours), values(theirs), strict=True))
    assert len(pairs) > 6
    for index, (a, b) in enumerate(pairs):
        np.testing.assert_array_equal(a, b, err_msg=str(index))


class Stop(Exception):
    """The end of a training that was not planned."""


class StopAt(keras.callbacks.Callback):
    def __init__(self, epoch: int, batch: int) -> None:
        super().__init__()
        self.at = (epoch, batch)
        self.epoch = 0
        self.epochs: list[int] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch
        self.epochs.append(epoch)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if (self.epoch, batch) == self.at:
            raise Stop


class Source:
    """Batches that can continue within an epoch."""

    def __init__(self) -> None:
        self.begin = 0
        self.seen: list[int] = []
        self.resumed: Any = None

    def position(self, epoch: int, batch: int) -> Any:
        return {"epoch": epoch, "batch": batch}

    def resume(self, position: Any) -> bool:
        self.resumed = position
        self.begin = position["batch"] % BATCHES
        return position["batch"] < BATCHES

    def dataset(self) -> tf.data.Dataset:
        def generate() -> Iterator[tuple[Any, Any]]:
            begin, self.begin = self.begin, 0
            for index in range(begin, BATCHES):
                self.seen.append(index)
                yield X[index * BATCH : (index + 1) * BATCH], Y[index * BATCH : (index + 1) * BATCH]

        return tf.data.Dataset.from_generator(
            generate, output_signature=(tf.TensorSpec([None, 6], tf.float32), tf.TensorSpec([None, 1], tf.float32))
        )


def fit(
    model: Any,
    folder: Path,
    *,
    data: Any = None,
    steps: int | None = None,
    callbacks: Any = (),
    epochs: int = 3,
    **options: Any,
) -> Any:
    """Train with checkpoints; returns the Checkpointer, closed."""
    with Checkpointer(folder, **options) as checkpointer:
        callback = checkpointer.callback(data=data)
        source = data.dataset() if data is not None else dataset()
        if steps is not None:
            source = source.repeat()
        model.fit(source, epochs=epochs, steps_per_epoch=steps, verbose=0, callbacks=[*callbacks, callback])
    return checkpointer


def check_resuming_at_an_epoch_is_as_if_nothing_had_happened(folder: Path) -> None:
    straight = make_model()
    straight.fit(dataset(), epochs=3, verbose=0)
    with contextlib.suppress(Stop):
        fit(make_model(), folder, every="epoch", callbacks=[StopAt(2, 3)])
    model, watch = make_model(), StopAt(-1, -1)
    checkpointer = fit(model, folder, every="epoch", callbacks=[watch])
    assert watch.epochs == [2]
    assert (checkpointer.progress.epoch, checkpointer.progress.step) == (3, 3 * BATCHES)
    assert_same(model, straight)


def check_resuming_within_an_epoch_is_as_if_nothing_had_happened(folder: Path) -> None:
    straight = make_model()
    straight.fit(Source().dataset().repeat(), epochs=3, steps_per_epoch=BATCHES, verbose=0)
    # With a length of the epoch that Keras knows, and without.
    for steps in (BATCHES, None):
        with contextlib.suppress(Stop):
            fit(make_model(), folder / str(steps), data=Source(), steps=steps, every=5, callbacks=[StopAt(1, 6)])
        source, model, watch = Source(), make_model(), StopAt(-1, -1)
        checkpointer = fit(model, folder / str(steps), data=source, steps=steps, every=5, callbacks=[watch])
        assert source.resumed == {"epoch": 1, "batch": 2}, source.resumed
        assert source.seen[: 2 * BATCHES - 2] == [*range(2, BATCHES), *range(BATCHES)], source.seen
        assert watch.epochs == [1, 2]
        assert (checkpointer.progress.epoch, checkpointer.progress.step) == (3, 3 * BATCHES)
        # Where Keras does not know the length, it runs into the end of the data at the end of a process' first epoch,
        # and half a step is made: an iteration is counted (tf_keras), random numbers are drawn (Keras 3).
        if steps is not None:
            assert_same(model, straight)


def check_a_saved_epoch_of_which_nothing_is_left(folder: Path) -> None:
    with Checkpointer(folder) as checkpointer:
        checkpointer.save(make_model(), epoch=0, step=8, batch=8, position={"epoch": 0, "batch": BATCHES})
    source, watch = Source(), StopAt(-1, -1)
    checkpointer = fit(make_model(), folder, data=source, callbacks=[watch], epochs=2)
    assert watch.epochs == [1] and checkpointer.progress.step == 2 * BATCHES


def check_an_interrupted_epoch_begins_anew_without_a_data_source(folder: Path) -> None:
    with contextlib.suppress(Stop):
        fit(make_model(), folder, every=5, callbacks=[StopAt(1, 6)])
    watch, said = StopAt(-1, -1), io.StringIO()
    with contextlib.redirect_stderr(said):
        checkpointer = fit(make_model(), folder, callbacks=[watch])
    assert watch.epochs == [1, 2]
    assert "epoch 2 was interrupted after 2 batches and starts over" in said.getvalue()
    assert checkpointer.progress.step == 10 + 2 * BATCHES


def check_a_finished_training_stays_finished(folder: Path) -> None:
    first, second, watch = make_model(), make_model(), StopAt(-1, -1)
    before = fit(first, folder, epochs=2).checkpoints()
    checkpointer = fit(second, folder, epochs=2, callbacks=[watch])
    assert watch.epochs == [] and checkpointer.checkpoints() == before
    assert_same(first, second)
    second.fit(dataset(), epochs=1, verbose=0, callbacks=[watch])
    assert watch.epochs == [0]  # a later fit begins where it is told to


def check_restoring_by_hand(folder: Path) -> None:
    fit(make_model(), folder, epochs=2)
    model, watch = make_model(), StopAt(-1, -1)
    with Checkpointer(folder) as checkpointer:
        restored = checkpointer.restore(model)
        assert restored is not None
        model.fit(
            dataset(),
            epochs=4,
            initial_epoch=restored.epoch,
            verbose=0,
            callbacks=[watch, checkpointer.callback()],
        )
    assert watch.epochs == [2, 3] and checkpointer.progress.step == 4 * BATCHES


def check_steps_are_counted(folder: Path) -> None:
    source = Source()
    checkpointer = fit(make_model(), folder / "unknown", data=source, every=3, keep=None, epochs=2)
    assert steps_of(checkpointer) == [3, 6, 9, 12, 15, 16]
    model = make_model(steps_per_execution=3)
    checkpointer = fit(model, folder / "several", every=3, keep=None, epochs=2)
    assert steps_of(checkpointer) == [3, 6, 11, 14, 16], steps_of(checkpointer)
    checkpointer = fit(make_model(), folder / "epochs", every="2 epochs", keep=None, epochs=5)
    assert steps_of(checkpointer) == [16, 32, 40]


def steps_of(checkpointer: Any) -> list[int]:
    return [int(name.rpartition("-")[2]) for name in checkpointer.checkpoints()]


def check_the_best_epoch_stays(folder: Path) -> None:
    values_by_epoch = iter([5.0, 1.0, 3.0, 2.0])

    def thing(y: Any, predicted: Any) -> Any:
        return now + 0 * tf.reduce_mean(predicted)

    now = tf.Variable(0.0)

    class Next(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            now.assign(next(values_by_epoch))

    model = make_model(metrics=[thing])
    with Checkpointer(folder, keep=1, best="min thing", every="100 epochs") as checkpointer:
        model.fit(dataset(), epochs=4, verbose=0, callbacks=[Next(), checkpointer.callback()])
        assert steps_of(checkpointer) == [2 * BATCHES, 4 * BATCHES]
        best = checkpointer.restore(model, which="best")
    assert best is not None and best.epoch == 2
    assert best.metrics["thing"] == 1.0 and "loss" in best.metrics


def check_a_save_can_be_asked_for(folder: Path) -> None:
    with Checkpointer(folder, every="1h") as checkpointer:
        callback = checkpointer.callback(metadata=lambda: {"asked": True})

        class Ask(keras.callbacks.Callback):
            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                if batch == 2:
                    callback.request()

        make_model().fit(dataset(), epochs=1, verbose=0, callbacks=[Ask(), callback])
        assert steps_of(checkpointer) == [3, BATCHES]
        restored = checkpointer.restore(which=checkpointer.checkpoints()[0])
        assert restored is not None and restored.metadata == {"asked": True}


def check_optimizers(folder: Path) -> None:
    """Each step is eager: nothing of this is in a graph, and one for each optimizer would take most of the time."""
    optimizers = keras.optimizers
    makers: dict[str, Callable[[], Any]] = {
        "average": lambda: optimizers.AdamW(0.01, use_ema=True),
        "schedule": lambda: optimizers.RMSprop(optimizers.schedules.ExponentialDecay(0.1, 10, 0.9), centered=True),
        "scaled": lambda: keras.mixed_precision.LossScaleOptimizer(optimizers.Adam(0.01)),
    }
    if LEGACY:
        makers["old"] = lambda: optimizers.legacy.Adam(0.01, amsgrad=True)
    for name, maker in makers.items():
        model, again = (make_model(maker(), run_eagerly=True) for _ in range(2))
        for _ in range(2):
            model.train_on_batch(X, Y)
        with Checkpointer(folder / name) as checkpointer:
            checkpointer.save(model, step=2)
            checkpointer.restore(again)
        assert_same(again, model)
        for one in (model, again):
            one.train_on_batch(X[::-1], Y[::-1])
        assert_same(again, model)
        try:
            Checkpointer(folder / name, read_only=True).restore(make_model(optimizers.Adagrad(0.01)))
        except CheckpointMismatchError as error:
            assert "optimizer" in str(error), error
        else:
            raise AssertionError(name)


def check_the_learning_rate(folder: Path) -> None:
    def rate_after(size: int, **options: Any) -> float:
        model = make_model(keras.optimizers.Adam(0.04))

        class Cluster:
            rank = 0

            def broadcast_object(self, value: Any) -> Any:
                return value

            def barrier(self) -> None:
                pass

        cluster: Any = Cluster()
        cluster.size = size
        Checkpointer(folder, read_only=True, cluster=cluster, **options).restore(model)
        return round(float(model.optimizer.learning_rate.numpy()), 6)

    model = make_model(keras.optimizers.Adam(0.08))
    model.optimizer.learning_rate.assign(0.02)  # as a callback does that lowers it
    with Checkpointer(folder) as checkpointer:
        checkpointer.save(model, step=1)
    assert rate_after(1) == 0.02
    assert rate_after(2) == 0.04  # the script has scaled it to the size that there is now
    assert rate_after(2, learning_rate="saved") == 0.02
    assert rate_after(1, learning_rate="current") == 0.04


def check_weights_alone(folder: Path) -> None:
    first = make_model()
    with Checkpointer(folder) as checkpointer:
        checkpointer.save(first, step=1)
        second = make_model()
        second.optimizer = None
        for weight in second.weights:
            weight.assign(np.zeros(weight.shape))
        assert checkpointer.restore(second) is not None
        for a, b in zip(first.weights, second.weights, strict=True):
            np.testing.assert_array_equal(a.numpy(), b.numpy())


def check_other_models_are_refused(folder: Path) -> None:
    with Checkpointer(folder) as checkpointer:
        checkpointer.save(make_model(), step=1)
        other = keras.Sequential([layers.Input([6]), layers.Dense(9), layers.BatchNormalization(), layers.Dense(1)])
        try:
            checkpointer.restore(other)
        except CheckpointMismatchError as error:
            assert "kernel [6, 8] float32 instead of" in str(error), error
        else:
            raise AssertionError
        unbuilt = keras.Sequential([layers.Dense(2)])
        for call in (checkpointer.save, checkpointer.restore):
            try:
                call(unbuilt)
            except CheckpointMismatchError as error:
                assert "call it with a batch first: model(inputs)" in str(error), error
            else:
                raise AssertionError


def check_a_model_that_is_built_in_its_first_step(folder: Path) -> None:
    class Subclassed(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = layers.Dense(1)

        def call(self, inputs: Any) -> Any:
            return self.dense(inputs)

    def make() -> Any:
        model = Subclassed()
        model.compile(keras.optimizers.Adam(0.01), "mse")
        return model

    def guessed_s(checkpointer: Any) -> float | None:
        cost: float | None = checkpointer.schedule._cost_s
        return cost

    for every, expected in ((1, list(range(1, BATCHES + 1))), ("epoch", [BATCHES]), ("1h", [BATCHES])):
        checkpointer = fit(make(), folder / str(every), every=every, keep=None, epochs=1)
        assert steps_of(checkpointer) == expected, (every, steps_of(checkpointer))
        assert guessed_s(checkpointer)
    # Where there is something to be restored, its variables are needed before.
    with Checkpointer(folder / "epoch") as checkpointer:
        try:
            checkpointer.restore(make())
        except CheckpointMismatchError as error:
            assert "checkpoint-00000001-step-8 cannot be restored: model" in str(error), error
            assert "model(inputs)" in str(error), error
        else:
            raise AssertionError
    model = make()
    model(X[:1])
    again = fit(model, folder / "epoch", every="epoch", epochs=2)
    assert again.progress.epoch == 2 and again.progress.step == 2 * BATCHES


def check_bfloat16(folder: Path) -> None:
    def make() -> Any:
        return keras.Sequential([layers.Input([3]), layers.Dense(4, dtype="bfloat16"), layers.Dense(2)])

    first, second = make(), make()
    with Checkpointer(folder) as checkpointer:
        checkpointer.save(first, step=1)
        checkpointer.restore(second)
    for a, b in zip(first.weights, second.weights, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    assert first.weights[0].numpy().dtype.name == "bfloat16"


def check_variables_in_a_mapping(folder: Path) -> None:
    def make(value: float) -> dict[str, Any]:
        return {"v": tf.Variable([value, value]), "step": tf.Variable(int(value)), "array": np.full(2, value)}

    target = make(0)
    with Checkpointer(folder) as checkpointer:
        checkpointer.save(make(3), step=1)
        checkpointer.restore(target)
    assert target["v"].numpy().tolist() == [3, 3] and int(target["step"]) == 3 and target["array"].tolist() == [3, 3]


def check_the_other_keras_is_refused(folder: Path) -> None:
    shared = FOLDER.parent / "shared"
    with Checkpointer(shared / FLAVOUR) as checkpointer:
        checkpointer.save(make_model(), step=1)
    theirs = shared / ("keras" if LEGACY else "tf_keras")
    if theirs.exists():
        try:
            Checkpointer(theirs, read_only=True).restore(make_model())
        except CheckpointMismatchError as error:
            assert "TF_USE_LEGACY_KERAS" in str(error)
        else:
            raise AssertionError


def check_mirrored_replicas(folder: Path) -> None:
    if not LEGACY:
        return
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        model = make_model()
    fit(model, folder, epochs=1)
    with strategy.scope():
        again = make_model()
    checkpointer = fit(again, folder, epochs=1)
    assert_same(again, model)
    single = make_model()
    Checkpointer(folder, read_only=True).restore(single)
    assert_same(single, again)
    assert checkpointer.progress.step == BATCHES


def check_parameter_servers(folder: Path) -> None:
    """A chief, one worker and two servers that hold parts of the variables; then one process without any."""
    if not LEGACY:
        return
    import socket

    def free_port() -> int:
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            return int(listening.getsockname()[1])

    spec = tf.train.ClusterSpec(
        {"ps": [f"127.0.0.1:{free_port()}" for _ in range(2)], "worker": [f"127.0.0.1:{free_port()}"]}
    )
    servers = [
        tf.distribute.Server(spec, job_name=job, task_index=index, protocol="grpc", start=True)
        for job, index in (("ps", 0), ("ps", 1), ("worker", 0))
    ]
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, rpc_layer="grpc")
    strategy = tf.distribute.ParameterServerStrategy(
        resolver, variable_partitioner=tf.distribute.experimental.partitioners.FixedShardsPartitioner(2)
    )
    with strategy.scope():
        model = make_model(dropout=False)
    assert any("part_1" in weight.name for weight in model.weights)
    with Checkpointer(folder, every="epoch") as checkpointer:
        model.fit(dataset().repeat(), epochs=2, steps_per_epoch=5, verbose=0, callbacks=[checkpointer.callback()])
        assert steps_of(checkpointer) == [5, 10]
        with strategy.scope():
            again = make_model(dropout=False)
        checkpointer.restore(again)
        assert_same(again, model)
    single = make_model(dropout=False)
    restored = Checkpointer(folder, read_only=True, learning_rate="saved").restore(single)
    assert restored is not None and restored.epoch == 2
    assert_same(single, model)
    del servers


def main() -> None:
    if LEGACY:
        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
        )
    for name, check in list(globals().items()):
        if name.startswith("check_"):
            began = time.monotonic()
            print(name, end=" ", flush=True)
            check(FOLDER / name)
            print(f"{time.monotonic() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # TensorFlow's servers would take their time
