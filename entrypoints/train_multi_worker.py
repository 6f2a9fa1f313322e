"""Train a digits classifier with TensorFlow's MultiWorkerMirroredStrategy, in an ordinary script for SageMaker.

The script does not use fleetfit. Each process reads its task from TF_CONFIG, as in TensorFlow's guide "Multi-worker
training with Keras". Without TF_CONFIG, the script trains in one process.

Once per epoch, the chief prints a line with values for metric definitions such as these::

    - loss: ([0-9.]+)    - accuracy: ([0-9.]+)    - val_loss: ([0-9.]+)    - val_accuracy: ([0-9.]+)
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

# With Keras 3, fit() does not support this strategy. This variable must be set before TensorFlow is imported.
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# Without oneDNN, sums have the same order on every machine, and TensorFlow prints no message about this order.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

import tensorflow as tf

PIXELS = 64
CLASSES = 10
SHUFFLE_BUFFER = 4096


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the hyperparameters and the folders. SageMaker's environment variables name the default folders."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32, help="records per step and worker")
    parser.add_argument(
        "--learning-rate",
        type=float,
        default=0.001,
        help="learning rate of one worker; it is multiplied by the number of workers",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--train", type=Path, default=os.environ.get("SM_CHANNEL_TRAIN", "data/digits/train"))
    parser.add_argument(
        "--validation", type=Path, default=os.environ.get("SM_CHANNEL_VALIDATION", "data/digits/validation")
    )
    parser.add_argument("--model_dir", help="folder for the model if SM_MODEL_DIR is not set")
    return parser.parse_args(arguments)


def read(folder: Path) -> tf.data.Dataset:
    """Return all records of a channel, as pairs of an image (64 floats) and a label (int64)."""
    files = sorted(str(path) for path in folder.glob("*.tfrecord"))
    if not files:
        raise SystemExit(f"{folder} has no *.tfrecord files. To make some, run entrypoints/prepare_digits.py")
    features = {
        "image": tf.io.FixedLenFeature([PIXELS], tf.float32),
        "label": tf.io.FixedLenFeature([], tf.int64),
    }

    def parse(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        example = tf.io.parse_single_example(record, features)
        return example["image"], example["label"]

    return tf.data.TFRecordDataset(files).map(parse)


def count(dataset: tf.data.Dataset) -> int:
    """Return the number of records. All records are read."""
    return int(dataset.reduce(0, lambda total, _: total + 1))


def build_model() -> tf.keras.Model:
    """Return a small convolutional network. Input shape: (batch, 64); output: (batch, 10) logits."""
    layers = tf.keras.layers
    return tf.keras.Sequential(
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


def main(options: argparse.Namespace) -> None:
    """Train, and save the model in SageMaker's folder."""
    # Create the strategy first, because it starts the server through which the workers communicate.
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    task = json.loads(os.environ.get("TF_CONFIG") or "{}").get("task", {"type": "worker", "index": 0})
    is_chief = task["type"] == "chief" or task["index"] == 0
    workers = strategy.num_replicas_in_sync
    print(f"{task['type']} {task['index']} of {workers}", flush=True)

    tf.keras.utils.set_random_seed(options.seed)
    training, validation = read(options.train), read(options.validation)
    steps = count(training) // (options.batch_size * workers)

    def shard(context: tf.distribute.InputContext) -> tf.data.Dataset:
        mine = training.shard(context.num_input_pipelines, context.input_pipeline_id).cache()
        return mine.shuffle(SHUFFLE_BUFFER, seed=options.seed).repeat().batch(options.batch_size).prefetch(2)

    # Every worker evaluates the same single batch with all records. The mean over the workers is thus the mean over the
    # records.
    whole = tf.data.Options()
    whole.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    validation = validation.batch(count(validation)).with_options(whole)

    with strategy.scope():
        model = build_model()
        model.compile(
            tf.keras.optimizers.Adam(options.learning_rate * workers),
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    model.fit(
        strategy.distribute_datasets_from_function(shard),
        epochs=options.epochs,
        steps_per_epoch=steps,
        validation_data=validation,
        verbose=2 if is_chief else 0,
    )
    save(model, options, is_chief=is_chief)


def save(model: tf.keras.Model, options: argparse.Namespace, *, is_chief: bool) -> None:
    """Write a SavedModel. All workers must call this function, because they communicate while they save.

    The chief writes to SageMaker's folder or ``--model_dir``. Every other worker writes to a temporary folder, which is
    then removed.
    """
    directory = os.environ.get("SM_MODEL_DIR") or options.model_dir
    if not directory:
        print("neither SM_MODEL_DIR nor --model_dir is set: the model is not saved", flush=True)
        return
    if is_chief:
        tf.saved_model.save(model, os.path.join(directory, "1"))
        print(f"model: {os.path.join(directory, '1')}", flush=True)
    else:
        scratch = tempfile.mkdtemp()
        tf.saved_model.save(model, scratch)
        shutil.rmtree(scratch)


if __name__ == "__main__":
    main(parse_arguments(sys.argv[1:]))
