"""Train a digits classifier with any strategy or in one process, with tf_keras or Keras 3.

The job's ``distribution`` selects the strategy. The code does not depend on the strategy. The script also runs without
a job: with ``mpirun -np 2 python entrypoints/train.py``, with TF_CONFIG, or in one process.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

# Parameter servers need tf_keras. For other strategies, TF_USE_LEGACY_KERAS=0 in the job's environment selects Keras 3.
# The variable must be set before TensorFlow is imported.
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# Without oneDNN, sums have the same order on every machine, and TensorFlow prints no message about this order.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

import tensorflow as tf

from container import distributed
from container.checkpoint import Checkpointer

PIXELS = 64
CLASSES = 10
SHUFFLE_BUFFER = 4096


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the hyperparameters and the folders. SageMaker's environment variables name the default folders."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=64, help="number of records in one step of all ranks")
    parser.add_argument("--learning-rate", type=float, default=0.001, help="learning rate of one rank")
    parser.add_argument("--warmup-epochs", type=float, default=0)
    parser.add_argument("--compression", choices=["none", "fp16"], default="none")
    parser.add_argument("--op", choices=["average", "sum", "adasum"], default="average")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--train", type=Path, default=os.environ.get("SM_CHANNEL_TRAIN", "data/digits/train"))
    parser.add_argument(
        "--validation", type=Path, default=os.environ.get("SM_CHANNEL_VALIDATION", "data/digits/validation")
    )
    parser.add_argument("--model_dir", help="folder for the model if SM_MODEL_DIR is not set")
    parser.add_argument(
        "--checkpoint-dir",
        default=os.environ.get("SM_CHECKPOINT_DIR"),
        help="folder of the checkpoints (default: SM_CHECKPOINT_DIR, or no checkpoints if it is not set)",
    )
    return parser.parse_args(arguments)


def main(options: argparse.Namespace) -> None:
    """Train, and save the model and the checkpoints in SageMaker's folders."""
    cluster = distributed.init()

    keras = tf.keras

    def read(folder: Path) -> tf.data.Dataset:
        files = sorted(str(path) for path in folder.glob("*.tfrecord"))
        if not files:
            raise SystemExit(f"{folder} has no *.tfrecord files. To make some, run entrypoints/prepare_digits.py")
        return tf.data.TFRecordDataset(files)

    def read_training() -> tf.data.Dataset:
        return read(options.train)

    def read_validation() -> tf.data.Dataset:
        return read(options.validation)

    @distributed.vectorized  # each call parses many small records
    def parse(records: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the images and labels of serialized records. Shapes: (records, 64), float32; (records,), int64."""
        example = tf.io.parse_example(
            records,
            {
                "image": tf.io.FixedLenFeature([PIXELS], tf.float32),
                "label": tf.io.FixedLenFeature([], tf.int64),
            },
        )
        return example["image"], example["label"]

    keras.utils.set_random_seed(options.seed)
    with cluster.scope():
        layers = keras.layers
        model = keras.Sequential(
            [
                layers.Input([PIXELS]),
                layers.Reshape([8, 8, 1]),
                layers.Conv2D(16, 3, padding="same", activation="relu"),
                layers.Conv2D(32, 3, activation="relu"),
                layers.MaxPool2D(),
                layers.Flatten(),
                layers.Dense(64, activation="relu"),
                layers.Dense(CLASSES),
            ]
        )
        optimizer = keras.optimizers.Adam(cluster.scale(options.learning_rate, op=options.op))
        model.compile(
            optimizer=cluster.optimizer(optimizer, compression=options.compression, op=options.op),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )

    checkpointer = Checkpointer(options.checkpoint_dir, best="val_accuracy") if options.checkpoint_dir else None
    model.fit(
        cluster.dataset(
            read_training,
            global_batch_size=options.batch_size,
            parse=parse,
            shuffle=SHUFFLE_BUFFER,
            seed=options.seed,
            resumable=True,
        ),
        steps_per_epoch=cluster.steps_per_epoch(read_training, global_batch_size=options.batch_size),
        epochs=options.epochs,
        callbacks=cluster.callbacks(
            checkpointer,
            warmup_epochs=options.warmup_epochs,
            validation=read_validation,
            validation_parse=parse,
        ),
        verbose=2 if cluster.is_chief else 0,
    )
    scores = cluster.evaluate(model, read_validation, parse=parse)
    if cluster.is_chief:
        print(" - ".join(f"validation {name}: {value:.4f}" for name, value in sorted(scores.items())), flush=True)
        cluster.report(val_accuracy=scores["accuracy"])
    if options.model_dir or os.environ.get("SM_MODEL_DIR"):
        folder = cluster.export(model, os.environ.get("SM_MODEL_DIR") or options.model_dir)
        if folder is not None:
            print(f"model: {folder}", flush=True)


if __name__ == "__main__":
    main(parse_arguments(sys.argv[1:]))
