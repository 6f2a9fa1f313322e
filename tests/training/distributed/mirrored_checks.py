"""One process on several devices trains as one on one: ``mirrored_checks.py`` with the job's strategy as in a job."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = Path(sys.argv[1])

import numpy as np  # noqa: E402 - after the environment is set

from container import distributed  # noqa: E402
from container.checkpoint import Checkpointer  # noqa: E402

cluster = distributed.init()

import tensorflow as tf  # noqa: E402

keras = tf.keras
DEVICES = 4
rng = np.random.default_rng(0)
X = rng.normal(size=(90, 6)).astype(np.float32)  # 11 batches of 8, and 2 records
Y = (X[:, :1] * 2 + X[:, 1:2]).astype(np.float32)


def records() -> Any:
    return tf.data.Dataset.from_tensor_slices((X, Y))


def make_model(optimizer: Any = None) -> Any:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Input([6]), keras.layers.Dense(16, "relu"), keras.layers.Dense(1)])
    model.compile(optimizer or keras.optimizers.SGD(0.05), loss="mse", metrics=["mae"])
    return model


def refused(call: Callable[[], Any], *words: str) -> None:
    try:
        call()
    except (distributed.DistributedError, ValueError) as error:
        assert all(word in str(error) for word in words), error
    else:
        raise AssertionError(f"not refused: {words}")


found = (cluster.strategy, cluster.rank, cluster.size, cluster.replicas, cluster.is_chief)
assert found == ("mirrored", 0, 1, DEVICES, True), found
assert cluster.scale(0.1) == 0.1 * DEVICES
assert len(tf.config.list_logical_devices("CPU")) == DEVICES
refused(lambda: cluster.optimizer(keras.optimizers.SGD(), op="adasum"), "op='adasum'", "mirrored")
refused(lambda: cluster.dataset(records, global_batch_size=10), "10", str(DEVICES))

with cluster.scope():
    model = make_model(cluster.optimizer(keras.optimizers.SGD(0.05)))
checkpointer = Checkpointer(FOLDER)
history = model.fit(
    cluster.dataset(records, global_batch_size=8),
    epochs=2,
    callbacks=cluster.callbacks(checkpointer, validation=records),
    verbose=0,
).history

# The same without a strategy: the mean of the last batch, of two records, is theirs as well.
alone = make_model()
plain = alone.fit(records().batch(8), epochs=2, verbose=0).history
for ours, theirs in zip(model.get_weights(), alone.get_weights(), strict=True):
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
np.testing.assert_allclose(history["loss"][0], plain["loss"][0], rtol=0.1)
validated = [history["val_loss"][-1], history["val_mae"][-1]]
np.testing.assert_allclose(validated, alone.evaluate(X, Y, batch_size=90, verbose=0), rtol=1e-4)

checkpointer.close()
with cluster.scope():
    again = make_model(cluster.optimizer(keras.optimizers.SGD(0.05)))
    again.build([None, 6])
restored = Checkpointer(FOLDER).restore(again)
assert restored is not None and restored.epoch == 2, restored
for ours, theirs in zip(again.get_weights(), model.get_weights(), strict=True):
    np.testing.assert_array_equal(ours, theirs)

exported = cluster.export(model, FOLDER / "model")
assert (FOLDER / "model" / "1" / "saved_model.pb").is_file(), exported
print("all passed", os.environ.get("TF_USE_LEGACY_KERAS"))
