"""``two_workers.py FOLDER``: a worker of the two in TF_CONFIG; trains, loses everything, goes on from a checkpoint."""

from __future__ import annotations

import json
import os
import pickle
import sys
import time
from pathlib import Path
from typing import Any

RANK, FOLDER = int(json.loads(os.environ["TF_CONFIG"])["task"]["index"]), Path(sys.argv[1])
os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import numpy as np  # noqa: E402 - after the environment is set
import tensorflow as tf  # noqa: E402

from container.checkpoint import Checkpointer  # noqa: E402

keras = tf.keras


class Cluster:
    """Passes objects through files."""

    rank = RANK
    size = 2

    def __init__(self) -> None:
        self._count = 0

    def broadcast_object(self, value: Any) -> Any:
        self._count += 1
        path = FOLDER / f"broadcast-{self._count}"
        if RANK == 0:
            path.with_suffix(".part").write_bytes(pickle.dumps(value))
            path.with_suffix(".part").rename(path)
            return value
        while not path.exists():
            time.sleep(0.005)
        return pickle.loads(path.read_bytes())

    def barrier(self) -> None:
        raise NotImplementedError


class Watch(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.epochs: list[int] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epochs.append(epoch)


strategy = tf.distribute.MultiWorkerMirroredStrategy()
cluster = Cluster()


def make_model(seed: int) -> Any:
    keras.utils.set_random_seed(seed)
    layers = keras.layers
    with strategy.scope():
        model = keras.Sequential([layers.Input([6]), layers.Dense(8), layers.BatchNormalization(), layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.01), "mse")
    return model


def fit(model: Any, epochs: int) -> Any:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    generator = np.random.default_rng(RANK)  # each worker sees other data, so that moving averages differ
    data = tf.data.Dataset.from_tensors((generator.normal(size=(4, 6)) + RANK, generator.normal(size=(4, 1))))
    watch = Watch()
    # Each worker has a folder of its own, as on hosts that share no disk; the second one's must stay away.
    with Checkpointer(FOLDER / str(RANK), every=1, cluster=cluster) as checkpointer:
        model.fit(
            data.repeat().with_options(options),
            epochs=epochs,
            steps_per_epoch=1 if epochs == 1 else 2,
            verbose=0,
            callbacks=[watch, checkpointer.callback()],
        )
        if RANK == 0:
            # Also apart from the other worker, which is doing something else.
            checkpointer.save(model, epoch=epochs, step=checkpointer.progress.step, wait=True)
            time.sleep(0.2)
        return watch.epochs, checkpointer.progress


fit(make_model(1), 1)
model = make_model(2)
before = [weight.numpy().tolist() for weight in model.trainable_weights]
with Checkpointer(FOLDER / str(RANK), cluster=cluster) as checkpointer:
    restored = checkpointer.restore(model)
assert restored is not None and restored.step == 1 and restored.size == 2
assert before != [weight.numpy().tolist() for weight in model.trainable_weights]
mine = [float(np.sum(strategy.experimental_local_results(weight)[0].numpy())) for weight in model.weights]

epochs, _ = fit(make_model(3), 3)
step = [int(name.rpartition("-")[2]) for name in (checkpointer.checkpoints() if RANK == 0 else ["-5"])][-1]
print(json.dumps({"epochs": epochs, "step": cluster.broadcast_object(step) - 1, "weights": mine}), flush=True)
os._exit(0)
