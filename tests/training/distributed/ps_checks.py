"""The chief of a cluster with parameter servers, and its workers, which ``init()`` keeps: ``ps_checks.py FOLDER``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["TF_USE_LEGACY_KERAS"] = "1"
FOLDER = Path(sys.argv[1])

import numpy as np  # noqa: E402 - after the environment is set

from container import distributed  # noqa: E402
from container.checkpoint import Checkpointer  # noqa: E402

cluster = distributed.init(timeout=100)
print("only the chief comes here")

import keras as keras_3  # noqa: E402
import tensorflow as tf  # noqa: E402

keras = tf.keras
rng = np.random.default_rng(0)
X = rng.normal(size=(96, 6)).astype(np.float32)
Y = (X[:, :1] * 2).astype(np.float32)
STEPS = 12


def records() -> Any:
    return tf.data.Dataset.from_tensor_slices((X, Y))


def refused(call: Callable[[], Any], *words: str) -> None:
    try:
        call()
    except distributed.RefusedError as error:
        assert all(word in str(error) for word in words), error
    else:
        raise AssertionError(f"not refused: {words}")


assert (cluster.strategy, cluster.rank, cluster.size, cluster.is_chief) == ("parameter_server", 0, 2, True)
assert cluster.scale(0.1) == 0.1
assert cluster.steps_per_epoch(records, global_batch_size=8) == STEPS
assert cluster.broadcast_object("as it is") == "as it is"
refused(lambda: cluster.optimizer(keras_3.optimizers.SGD()), "tf_keras", "TF_USE_LEGACY_KERAS=1")
refused(lambda: cluster.optimizer(keras.optimizers.SGD(), compression="fp16"), "compression='fp16'")
refused(lambda: cluster.optimizer(keras.optimizers.SGD(), op="adasum"), "op='adasum'")
three = keras_3.Sequential([keras_3.layers.Input([6]), keras_3.layers.Dense(1)])
three.compile("sgd", "mse")
refused(lambda: three.fit(X, Y, callbacks=cluster.callbacks(), verbose=0), "tf_keras")

keras.utils.set_random_seed(0)
with cluster.scope():
    model = keras.Sequential([keras.layers.Input([6]), keras.layers.Dense(16, "relu"), keras.layers.Dense(1)])
    model.compile(cluster.optimizer(keras.optimizers.SGD(0.05)), loss="mse", metrics=["mae"])
assert "ps" in model.trainable_variables[0].device, model.trainable_variables[0].device
checkpointer = Checkpointer(FOLDER / "checkpoints", every="epoch")
history = model.fit(
    cluster.dataset(records, global_batch_size=8, shuffle=96, seed=1),
    steps_per_epoch=STEPS,
    epochs=4,
    callbacks=cluster.callbacks(checkpointer, validation=records, warmup_epochs=2),
    verbose=0,
).history
assert history["val_loss"][-1] < history["val_loss"][0] / 2, history
assert int(model.optimizer.iterations) == 4 * STEPS
assert checkpointer.checkpoints()
scores = cluster.evaluate(model, records)
predicted = cluster.export(model, FOLDER / "model")
assert predicted is not None
served = tf.saved_model.load(str(predicted))
found = np.asarray(next(iter(served.signatures["serving_default"](tf.constant(X)).values())))
np.testing.assert_allclose(scores["mae"], np.abs(found - Y).mean(), rtol=1e-4)


class Subclassed(keras.Model):
    """A model that makes its variables when it is first called."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, inputs: Any) -> Any:
        return self.dense(inputs)

    def get_config(self) -> dict[str, Any]:
        return {}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        return cls()


with cluster.scope():
    subclassed = Subclassed()
    subclassed.compile(cluster.optimizer(keras.optimizers.SGD(0.05)), loss="mse")
data = cluster.dataset(records, global_batch_size=8)
losses = subclassed.fit(
    data, steps_per_epoch=STEPS, epochs=2, callbacks=cluster.callbacks(validation=records), verbose=0
)
assert losses.history["val_loss"][-1] < losses.history["val_loss"][0]
assert cluster.export(subclassed, FOLDER / "subclassed") is not None

outside = keras.Sequential([keras.layers.Input([6]), keras.layers.Dense(1)])
outside.compile(keras.optimizers.SGD(0.05), loss="mse")
refused(lambda: outside.fit(data, steps_per_epoch=1, callbacks=cluster.callbacks(), verbose=0), "cluster.scope()")
refused(lambda: outside.fit(X, Y, callbacks=cluster.callbacks(), verbose=0), "cluster.scope()")
try:
    cluster.steps_per_epoch(lambda: records().take(1), global_batch_size=1)
except distributed.DistributedError as error:
    assert "1 records for 2 workers" in str(error)
else:
    raise AssertionError("fewer records than workers were not refused")

# Each worker has its own records, and its updates come between the other's: they are asynchronous.
creator = cluster.dataset(lambda: tf.data.Dataset.range(10), global_batch_size=5)
coordinator = tf.distribute.coordinator.ClusterCoordinator(cluster.tf_strategy)
batches = iter(coordinator.create_per_worker_dataset(lambda: creator(None)))
with cluster.scope():
    counter = tf.Variable(0, dtype=tf.int64)


@tf.function
def step(iterator: Any) -> tuple[Any, Any]:
    before = counter.read_value()
    with tf.control_dependencies([before]):
        busy = tf.linalg.matmul(tf.ones([400, 400]), tf.ones([400, 400]))
    with tf.control_dependencies([busy]):
        after = counter.assign_add(1, read_value=True)
    return next(iterator), after - before


results = [coordinator.schedule(step, args=(batches,)) for _ in range(60)]
coordinator.join()
values = [result.fetch() for result in results]
seen = {tuple(batch.tolist()) for batch, _ in values}
assert seen == {(0, 2, 4, 6, 8), (1, 3, 5, 7, 9)}, seen
assert max(int(moved) for _, moved in values) > 1, "no update came between another worker's read and update"
print("all passed", flush=True)
