"""Trains one dense layer and says when the first step has ended, for ``benchmarks/first_step.py``."""

from __future__ import annotations

import os
import time
from typing import Any

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

import tensorflow as tf

from container import distributed

BATCH = 4


class First(tf.keras.callbacks.Callback):
    """Prints when the first epoch, which is one step, has ended, in seconds since the epoch."""

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Print it."""
        print(f"first step {time.time():.6f}", flush=True)


def records() -> tf.data.Dataset:
    """Two batches for each of two ranks."""
    return tf.data.Dataset.from_tensors(([1.0], [1.0])).repeat(4 * BATCH)


def main() -> None:
    """Train for a step or two."""
    cluster = distributed.init()
    with cluster.scope():
        model = tf.keras.Sequential([tf.keras.layers.Input([1]), tf.keras.layers.Dense(1)])
        model.compile(optimizer=cluster.optimizer(tf.keras.optimizers.SGD(0.01)), loss="mse")
    model.fit(
        cluster.dataset(records, global_batch_size=BATCH),
        steps_per_epoch=1,
        epochs=1,
        callbacks=[*cluster.callbacks(report=False), First()],
        verbose=0,
    )


if __name__ == "__main__":
    main()
