"""Train a digits classifier in the style of TensorFlow 1. If the job's strategy is MPI, use Horovod.

The script does not use fleetfit. Like SageMaker scripts for TensorFlow 1, it reads from SM_FRAMEWORK_PARAMS whether MPI
is enabled, and trains in a MonitoredTrainingSession. With MPI, the session has Horovod's BroadcastGlobalVariablesHook.

Rank 0 prints lines with values for metric definitions such as these::

    loss: ([0-9.]+)    val_accuracy: ([0-9.]+)
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# Without oneDNN, sums have the same order on every machine, and TensorFlow prints no message about this order.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

import tensorflow.compat.v1 as tf

USES_MPI = bool(json.loads(os.environ.get("SM_FRAMEWORK_PARAMS") or "{}").get("sagemaker_mpi_enabled", False))
hvd: Any = None
if USES_MPI:
    import horovod.tensorflow as hvd  # type: ignore[no-redef]

PIXELS = 64
CLASSES = 10
HIDDEN = 64
SHUFFLE_BUFFER = 4096


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the hyperparameters and the folders. SageMaker's environment variables name the default folders."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600, help="steps of all ranks together; each rank does its share")
    parser.add_argument("--batch-size", type=int, default=32, help="records per step and rank")
    parser.add_argument(
        "--learning-rate",
        type=float,
        default=0.002,
        help="learning rate of one rank; it is multiplied by the number of ranks",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--train", type=Path, default=os.environ.get("SM_CHANNEL_TRAIN", "data/digits/train"))
    parser.add_argument(
        "--validation", type=Path, default=os.environ.get("SM_CHANNEL_VALIDATION", "data/digits/validation")
    )
    parser.add_argument("--model_dir", default=os.environ.get("SM_MODEL_DIR"))
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


def build_logits(images: tf.Tensor) -> tf.Tensor:
    """Return the logits of a network with one hidden layer. Input shape: (batch, 64); output: (batch, 10).

    All calls use the same weights.
    """
    with tf.variable_scope("model", reuse=tf.AUTO_REUSE):
        scale = tf.initializers.glorot_uniform()
        hidden = tf.nn.relu(
            images @ tf.get_variable("w1", [PIXELS, HIDDEN], initializer=scale)
            + tf.get_variable("b1", [HIDDEN], initializer=tf.zeros_initializer())
        )
        return hidden @ tf.get_variable("w2", [HIDDEN, CLASSES], initializer=scale) + tf.get_variable(
            "b2", [CLASSES], initializer=tf.zeros_initializer()
        )


class Evaluate(tf.train.SessionRunHook):
    """A hook that prints the accuracy when the session ends."""

    def __init__(self, accuracy: tf.Tensor) -> None:
        """Create the hook.

        Args:
            accuracy: The tensor of the accuracy over all validation records.
        """
        self._accuracy = accuracy

    def end(self, session: tf.Session) -> None:
        """Compute the accuracy with the last weights, and print it."""
        print(f"val_accuracy: {session.run(self._accuracy):.4f}", flush=True)


def main(options: argparse.Namespace) -> None:
    """Train, and save checkpoints in SageMaker's model folder. Only rank 0 saves checkpoints."""
    tf.disable_eager_execution()
    # 1. Initialize.
    if USES_MPI:
        hvd.init()
    rank, size = (hvd.rank(), hvd.size()) if USES_MPI else (0, 1)
    print(f"rank {rank} of {size}, {'with' if USES_MPI else 'without'} MPI", flush=True)

    tf.set_random_seed(options.seed + rank)  # rank 0's weights replace those of the other ranks
    training = read(options.train).shard(size, rank).shuffle(SHUFFLE_BUFFER, seed=options.seed)
    images, labels = tf.data.make_one_shot_iterator(training.repeat().batch(options.batch_size)).get_next()
    loss = tf.losses.sparse_softmax_cross_entropy(labels, build_logits(images))
    # The batch contains all records, because they are fewer than the batch size.
    held_out = read(options.validation).batch(1 << 20).repeat()
    held_images, held_labels = tf.data.make_one_shot_iterator(held_out).get_next()
    found = tf.argmax(build_logits(held_images), axis=1)
    accuracy = tf.reduce_mean(tf.cast(tf.equal(found, held_labels), tf.float32))

    # 2. One device per rank.
    config = tf.ConfigProto()
    config.gpu_options.allow_growth = True
    if USES_MPI:
        config.gpu_options.visible_device_list = str(hvd.local_rank())
    # 3. Multiply the learning rate by the number of ranks. 4. Average the gradients.
    optimizer = tf.train.AdamOptimizer(options.learning_rate * size)
    if USES_MPI:
        optimizer = hvd.DistributedOptimizer(optimizer)
    step = tf.train.get_or_create_global_step()
    train = optimizer.minimize(loss, global_step=step)

    steps = max(1, options.steps // size)
    hooks = [tf.train.StopAtStepHook(last_step=steps)]
    if USES_MPI:
        # 5. Start every rank with rank 0's weights.
        hooks.append(hvd.BroadcastGlobalVariablesHook(0))
    if rank == 0:
        hooks.append(tf.train.LoggingTensorHook({"loss": loss, "step": step}, every_n_iter=max(1, steps // 5)))
        hooks.append(Evaluate(accuracy))
    # 6. Save checkpoints only on rank 0.
    directory = options.model_dir if rank == 0 else None
    tf.logging.set_verbosity(tf.logging.INFO)
    with tf.train.MonitoredTrainingSession(checkpoint_dir=directory, config=config, hooks=hooks) as session:
        while not session.should_stop():
            session.run(train)


if __name__ == "__main__":
    main(parse_arguments(sys.argv[1:]))
