"""One training for every strategy, timed from the inside, for ``benchmarks/strategies.py``.

A small and a larger model are trained one after the other on random records, with a batch of 64 for each process. The
chief writes the times to ``--result``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# Parameter servers need tf_keras.
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

import numpy as np
import tensorflow as tf

from container import distributed
from container.distributed.tensorflow.callbacks import KerasCallback

BATCH = 64
RECORDS = 1024
#: Steps per process of each epoch before the timed ones, and of a timed one at least: several processes that share few
#: cores take half a second for a step of the larger model.
WARM_UP = 4
EPOCHS = 3
#: Perceptrons of these layers, the input included; ``benchmarks/strategies.py`` says what they are called.
MODELS = {"small": (64, 300, 256, 10), "larger": (512, 1152, 2048, 1000, 10)}


class Epochs(KerasCallback):
    """Times whole epochs: parameter servers refuse callbacks for batches."""

    batch_hooks = False

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._began = 0.0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Start the clock."""
        self._began = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Stop it."""
        self.seconds.append(time.perf_counter() - self._began)


def main() -> None:
    """Train each model."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, required=True, help="of the timed epochs of a model")
    parser.add_argument("--result", required=True)
    options, _ = parser.parse_known_args()

    cluster = distributed.init()

    # With parameter servers each worker makes steps of its own, with a batch of its own.
    steps_at_once = cluster.size if cluster.coordinates else 1
    batch_of_step = BATCH if cluster.coordinates else BATCH * cluster.size
    found = {}
    for name, (first, *hidden, last) in MODELS.items():
        random = np.random.default_rng(1)
        images = random.normal(size=(RECORDS, first)).astype(np.float32)
        labels = random.integers(last, size=RECORDS)

        def records(images: Any = images, labels: Any = labels) -> Any:
            return tf.data.Dataset.from_tensor_slices((images, labels))

        with cluster.scope():
            layers = tf.keras.layers
            dense = [layers.Dense(units, activation="relu") for units in hidden]
            model = tf.keras.Sequential([layers.Input([first]), *dense, layers.Dense(last)])
            model.compile(
                cluster.optimizer(tf.keras.optimizers.SGD(0.001)),
                loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            )
        batches = cluster.dataset(records, global_batch_size=batch_of_step, repeat=True)

        def epochs_s(epochs: int, steps: int, model: Any = model, batches: Any = batches) -> list[float]:
            epochs_timer = Epochs()
            model.fit(
                batches,
                epochs=epochs,
                steps_per_epoch=steps,
                verbose=0,
                callbacks=[epochs_timer, *cluster.callbacks(report=False)],
            )
            return epochs_timer.seconds

        warm_up = WARM_UP * steps_at_once
        step_s = epochs_s(2, warm_up)[-1] / warm_up
        steps = cluster.broadcast_object(max(warm_up, int(options.seconds / EPOCHS / step_s)))
        timed = epochs_s(EPOCHS, steps)
        found[name] = {
            "samples_per_second": [steps * batch_of_step / seconds for seconds in timed],
            "step_s": statistics.median(timed) / steps * steps_at_once,
            "steps": steps * EPOCHS,
        }
    if cluster.is_chief:
        with open(options.result, "w") as file:
            json.dump(found, file)


if __name__ == "__main__":
    main()
