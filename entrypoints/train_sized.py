"""Train a small or a big network on random images, to measure the speed of networks with different sizes of gradients.

The network ``small`` resembles Inception v1: it has branches of convolutions, few parameters, and many small gradients.
The network ``big`` resembles VGG: it has few layers, and most of its parameters are in one fully connected layer. Both
networks are smaller than the originals. The labels are random, so the accuracy has no meaning.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

# Parameter servers need tf_keras. This variable must be set before TensorFlow is imported.
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

import numpy as np
import tensorflow as tf

from container import distributed

MODELS = {
    "small": "3 inception blocks of 4 branches, global average pooling",
    "big": "4 convolutions, then fully connected layers of 512 and 256",
}
#: The number of parameters of each network.
PARAMETERS = {"small": 21_132, "big": 2_257_466}

SIDE = 32
CLASSES = 10
RECORDS = 256
#: The number of steps before the measurement. It is small, because a step may take seconds on a slow network.
WARM_UP = 2
EPOCHS = 2


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the hyperparameters. Unknown arguments are ignored."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=sorted(MODELS), default="small")
    parser.add_argument("--batch-size", type=int, default=16, help="records per step of each process")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of the measurement in seconds")
    parser.add_argument("--compression", choices=["none", "fp16"], default="none")
    options, _ = parser.parse_known_args(arguments)
    return options


def small(keras: Any) -> Any:
    """Return the network ``small``. Input shape: (batch, 32, 32, 3); output: (batch, 10) logits.

    The network has three blocks. A block joins four branches: 1 × 1, 3 × 3 and 5 × 5 convolutions, and pooling.
    """
    layers = keras.layers

    def convolution(units: int, size: int, before: Any) -> Any:
        return layers.Conv2D(units, size, padding="same", activation="relu")(before)

    images = layers.Input([SIDE, SIDE, 3])
    features = layers.MaxPool2D()(convolution(16, 3, images))
    for units in (8, 12, 16):
        branches = [
            convolution(units, 1, features),
            convolution(2 * units, 3, convolution(units, 1, features)),
            convolution(units, 5, convolution(units // 2, 1, features)),
            convolution(units, 1, layers.MaxPool2D(3, strides=1, padding="same")(features)),
        ]
        features = layers.Concatenate()(branches)
    return keras.Model(images, layers.Dense(CLASSES)(layers.GlobalAveragePooling2D()(features)))


def big(keras: Any) -> Any:
    """Return the network ``big``. Input shape: (batch, 32, 32, 3); output: (batch, 10) logits.

    The network has convolutions and pooling, then large fully connected layers.
    """
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input([SIDE, SIDE, 3]),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.MaxPool2D(),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.MaxPool2D(),
            layers.Flatten(),
            layers.Dense(512, activation="relu"),
            layers.Dense(256, activation="relu"),
            layers.Dense(CLASSES),
        ]
    )


def main(options: argparse.Namespace) -> None:
    """Train for about ``--seconds`` seconds. A few first steps show how many steps fit into this time."""
    cluster = distributed.init()

    keras = tf.keras
    random = np.random.default_rng(1)
    images = random.normal(size=(RECORDS, SIDE, SIDE, 3)).astype(np.float32)
    labels = random.integers(CLASSES, size=RECORDS)

    def records() -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices((images, labels))

    with cluster.scope():
        model = {"small": small, "big": big}[options.model](keras)
        compression = None if cluster.coordinates else options.compression
        model.compile(
            optimizer=cluster.optimizer(keras.optimizers.SGD(0.001), compression=compression),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
    # With parameter servers, each worker runs its own steps with its own batches.
    at_once = cluster.size if cluster.coordinates else 1
    batch_size = options.batch_size if cluster.coordinates else options.batch_size * cluster.size
    batches = cluster.dataset(records, global_batch_size=batch_size, repeat=True)
    steps = WARM_UP * at_once
    model.fit(batches, epochs=1, steps_per_epoch=steps, verbose=0)
    began = time.perf_counter()
    model.fit(batches, epochs=1, steps_per_epoch=steps, verbose=0)
    step_s = (time.perf_counter() - began) / steps
    # All ranks run the number of steps that rank 0 has computed.
    steps = cluster.broadcast_object(max(steps, int(options.seconds / EPOCHS / step_s)))
    model.fit(
        batches, epochs=EPOCHS, steps_per_epoch=steps, callbacks=cluster.callbacks(),
        verbose=2 if cluster.is_chief else 0,
    )  # fmt: skip


if __name__ == "__main__":
    main(parse_arguments(sys.argv[1:]))
