"""Train a small residual network on digits with ``cluster.fit``, for experiments with a changing number of workers.

The batch size of each worker is constant. The learning rate is proportional to the number of workers.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

import tensorflow as tf

from container import distributed

SIDE = 8
CLASSES = 10


def parse_arguments() -> argparse.Namespace:
    """Parse the hyperparameters and the folders. SageMaker's environment variables name the default folders."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=21)
    parser.add_argument("--batch-size", type=int, default=16, help="records per step of each worker")
    parser.add_argument("--learning-rate", type=float, default=0.01, help="learning rate of one worker")
    parser.add_argument("--filters", type=int, default=12)
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--train", type=Path, default=os.environ.get("SM_CHANNEL_TRAIN", "data/digits/train"))
    parser.add_argument(
        "--validation", type=Path, default=os.environ.get("SM_CHANNEL_VALIDATION", "data/digits/validation")
    )
    return parser.parse_known_args()[0]


def build(keras: Any, *, filters: int, blocks: int) -> Any:
    """Return the residual network. Input shape: (batch, 64); output: (batch, 10) probabilities.

    The network has a convolution, residual blocks of two convolutions each, global average pooling, and a dense layer.

    Args:
        keras: The Keras module.
        filters: The number of filters of each convolution.
        blocks: The number of residual blocks.
    """
    layers = keras.layers

    def convolution(value: Any) -> Any:
        value = layers.Conv2D(filters, 3, padding="same", use_bias=False, kernel_initializer="he_normal")(value)
        return layers.BatchNormalization(momentum=0.9)(value)

    image = keras.Input((SIDE * SIDE,))
    value = layers.ReLU()(convolution(layers.Reshape((SIDE, SIDE, 1))(image)))
    for _ in range(blocks):
        branch = convolution(layers.ReLU()(convolution(value)))
        value = layers.ReLU()(layers.Add()([value, branch]))
    value = layers.GlobalAveragePooling2D()(value)
    return keras.Model(image, layers.Dense(CLASSES, activation="softmax")(value))


def main(options: argparse.Namespace) -> None:
    """Train, and report the accuracy and the number of workers after each epoch."""
    cluster = distributed.init()

    keras = tf.keras

    def read(folder: Path) -> tf.data.Dataset:
        files = sorted(str(path) for path in folder.glob("*.tfrecord"))
        if not files:
            raise SystemExit(
                f"{folder} has no *.tfrecord files. To make some, run `python entrypoints/prepare_digits.py`."
            )
        return tf.data.TFRecordDataset(files).cache()

    @distributed.vectorized
    def parse(records: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        features = {
            "image": tf.io.FixedLenFeature([SIDE * SIDE], tf.float32),
            "label": tf.io.FixedLenFeature([], tf.int64),
        }
        found = tf.io.parse_example(records, features)
        return found["image"], found["label"]

    class Workers(keras.callbacks.Callback):  # type: ignore[name-defined]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if cluster.is_chief:
                cluster.report(workers=cluster.size)

    keras.utils.set_random_seed(options.seed)
    with cluster.scope():
        model = build(keras, filters=options.filters, blocks=options.blocks)
        model.compile(
            optimizer=cluster.optimizer(keras.optimizers.SGD(cluster.scale(options.learning_rate), momentum=0.9)),
            loss="sparse_categorical_crossentropy",
            weighted_metrics=["accuracy"],
        )
    cluster.fit(
        model,
        lambda: read(options.train),
        # The batch size of all workers together, with as many workers as the job is planned for. With the default
        # on_resize="scale_rate", each worker keeps its batch size when the number of workers changes.
        global_batch_size=options.batch_size * round(cluster.scale(1)),
        epochs=options.epochs,
        validation=lambda: read(options.validation),
        callbacks=[Workers()],
        parse=parse,
        shuffle=2048,
        seed=options.seed,
    )


if __name__ == "__main__":
    main(parse_arguments())
