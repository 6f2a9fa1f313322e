"""Train a digits classifier with ElasticHorovod, so that the training continues when hosts join or leave.

The script also runs with every other strategy. Unlike ``train.py``, it calls ``cluster.fit`` instead of ``model.fit``.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

import tensorflow as tf

from container import distributed
from container.checkpoint import Checkpointer

PIXELS = 64
CLASSES = 10


def parse_arguments() -> argparse.Namespace:
    """Parse the hyperparameters and the folders. SageMaker's environment variables name the default folders."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=64, help="number of records in one step of all ranks")
    parser.add_argument("--learning-rate", type=float, default=0.001, help="learning rate of one rank")
    parser.add_argument("--on-resize", choices=["scale_rate", "keep_global_batch"], default="scale_rate")
    parser.add_argument("--commit-every", type=int, help="steps between commits (default: chosen by their cost)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--train", type=Path, default=os.environ.get("SM_CHANNEL_TRAIN", "data/digits/train"))
    parser.add_argument(
        "--validation", type=Path, default=os.environ.get("SM_CHANNEL_VALIDATION", "data/digits/validation")
    )
    parser.add_argument("--model_dir", help="folder for the model if SM_MODEL_DIR is not set")
    parser.add_argument("--checkpoint-dir", default=os.environ.get("SM_CHECKPOINT_DIR"))
    return parser.parse_args()


def main(options: argparse.Namespace) -> None:
    """Train, and save the model and the checkpoints in SageMaker's folders."""
    cluster = distributed.init()

    keras = tf.keras

    def read(folder: Path) -> tf.data.Dataset:
        files = sorted(str(path) for path in folder.glob("*.tfrecord"))
        if not files:
            raise SystemExit(
                f"{folder} has no *.tfrecord files. To make some, run `python entrypoints/prepare_digits.py`."
            )
        return tf.data.TFRecordDataset(files)

    @distributed.vectorized
    def parse(records: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        features = {"image": tf.io.FixedLenFeature([PIXELS], tf.float32), "label": tf.io.FixedLenFeature([], tf.int64)}
        found = tf.io.parse_example(records, features)
        return found["image"], found["label"]

    keras.utils.set_random_seed(options.seed)
    with cluster.scope():
        model = keras.Sequential(
            [
                keras.Input((PIXELS,)),
                keras.layers.Dense(64, activation="relu"),
                keras.layers.Dense(CLASSES, activation="softmax"),
            ]
        )
        model.compile(
            optimizer=cluster.optimizer(keras.optimizers.Adam(cluster.scale(options.learning_rate))),
            loss="sparse_categorical_crossentropy",
            weighted_metrics=["accuracy"],
        )
    history = cluster.fit(
        model,
        lambda: read(options.train),
        global_batch_size=options.batch_size,
        epochs=options.epochs,
        checkpointer=Checkpointer(options.checkpoint_dir) if options.checkpoint_dir else None,
        validation=lambda: read(options.validation),
        on_resize=options.on_resize,
        commit_every=options.commit_every,
        parse=parse,
        shuffle=4096,
        seed=options.seed,
    )
    if cluster.is_chief and history:
        cluster.report(val_accuracy=history[-1].get("val_accuracy", 0.0))
    if options.model_dir or os.environ.get("SM_MODEL_DIR"):
        cluster.export(model, os.environ.get("SM_MODEL_DIR") or options.model_dir)


if __name__ == "__main__":
    main(parse_arguments())
