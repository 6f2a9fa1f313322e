"""Train briefly on random records, and time the steps. ``fleetfit calibrate`` and benchmarks run this program.

The models are perceptrons, which are trained one after another in the same processes, because starting processes takes
longer than timing steps. Nothing is learned. For each model, every rank reports ``gradient_bytes`` and ``step_s``, the
time of a step. With parameter servers, ``step_s`` is the time of a worker's step. If the waits for gradients are timed,
every rank also reports ``own_s``, the time of a step without these waits.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Sequence
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

from container import distributed
from container.checkpoint.keras_callback import KerasCallback, Logs
from container.distributed.tensorflow import optimizers

_RECORDS = 512
#: Number of untimed steps of each process; functions are traced in the first of them.
_WARM_UP = 2
#: Number of timed epochs. The median is reported, so that a short load of other programs on the machine has no effect.
_EPOCHS = 5


class EpochTimes(KerasCallback):
    """A callback that measures the duration of each epoch, and the time for which this rank waited for gradients in the
    epoch.

    Whole epochs are measured because, with parameter servers, Keras calls no methods for batches.

    Attributes:
        seconds: Duration of each epoch in seconds.
        waited_s: Waiting time in each epoch in seconds. Empty if waiting times are not measured.
    """

    batch_hooks = False

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.waited_s: list[float] = []
        self._began = 0.0
        self._waited: float | None = None

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """Record the time and the total waiting time at the beginning of the epoch."""
        self._waited = self._total_s()
        self._began = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Compute the duration and the waiting time of the epoch."""
        self.seconds.append(time.perf_counter() - self._began)
        total_s = self._total_s()
        if total_s is not None and self._waited is not None:
            self.waited_s.append(total_s - self._waited)

    def _total_s(self) -> float | None:
        reduction = optimizers.reduction_of(getattr(self.model, "optimizer", None))
        return float(reduction.waited_s.numpy()) if reduction is not None and reduction.waited_s is not None else None


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the script's options. The job passes hyperparameters as options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--layers", default="64,300,256,10",
        help="units of each layer of a perceptron, in order; to measure several perceptrons, put / between them",
    )  # fmt: skip
    parser.add_argument("--batch-size", type=int, default=32, help="number of records in a step of each process")
    parser.add_argument(
        "--seconds", type=float, default=0.6, help="length of the measurement of each model, in seconds"
    )
    options, _ = parser.parse_known_args(arguments)
    return options


def main(options: argparse.Namespace) -> None:
    """Train and measure each model."""
    cluster = distributed.init()
    for layers in options.layers.split("/"):
        _train(cluster, [int(units) for units in layers.split(",")], options.batch_size, options.seconds)


def _train(cluster: Any, units: Sequence[int], batch_size: int, seconds: float) -> None:
    import numpy as np
    import tensorflow as tf

    first, *hidden, last = units
    random = np.random.default_rng(1)
    images = random.normal(size=(_RECORDS, first)).astype(np.float32)
    labels = random.integers(last, size=_RECORDS)
    with cluster.scope():
        layers = tf.keras.layers
        dense = [layers.Dense(count, activation="relu") for count in hidden]
        model = tf.keras.Sequential([layers.Input([first]), *dense, layers.Dense(last)])
        model.compile(
            cluster.optimizer(tf.keras.optimizers.SGD(0.001)),
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
    # With parameter servers, each worker does separate steps with its own batches.
    at_once = cluster.size if cluster.coordinates else 1

    def records() -> Any:
        return tf.data.Dataset.from_tensor_slices((images, labels))

    batches = cluster.dataset(
        records, global_batch_size=batch_size if cluster.coordinates else batch_size * cluster.size, repeat=True
    )

    def timed(epochs: int, steps: int) -> EpochTimes:
        timer = EpochTimes()
        callbacks = [timer, *cluster.callbacks(report=False)]
        model.fit(batches, epochs=epochs, steps_per_epoch=steps, verbose=0, callbacks=callbacks)
        return timer

    steps = _WARM_UP * at_once
    step_s = timed(2, steps).seconds[-1] / steps
    steps = cluster.broadcast_object(max(at_once, int(seconds / _EPOCHS / step_s)))
    timer = timed(_EPOCHS, steps)
    if not timer.seconds:
        return  # a worker of parameter servers, in which the chief has done the training
    found = {
        "gradient_bytes": 4.0 * sum(int(np.prod(variable.shape)) for variable in model.trainable_variables),
        "step_s": statistics.median(timer.seconds) / steps * at_once,
    }
    if timer.waited_s:
        own = (whole - waited for whole, waited in zip(timer.seconds, timer.waited_s, strict=True))
        found["own_s"] = statistics.median(own) / steps
    cluster.report(**found)
