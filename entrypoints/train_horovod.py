"""Train a digits classifier with Horovod, in an ordinary script for SageMaker.

The script does not use fleetfit. It runs with ``fit()``, on SageMaker, with ``mpirun -np 2 python
entrypoints/train_horovod.py``, and in one process. Without Horovod, a single process prints a message and trains alone,
and several processes exit with an error. The numbers in the comments are the numbers of the steps in Horovod's guide
for Keras.

Once per epoch, rank 0 prints a line with values for metric definitions such as these::

    - loss: ([0-9.]+)    samples_per_second: ([0-9.]+)    val_loss: ([0-9.]+)    val_accuracy: ([0-9.]+)
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Horovod's optimizer does not reduce gradients under Keras 3. This must be set before TensorFlow is imported.
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# Without oneDNN, sums have the same order on every machine, and TensorFlow prints no message about this order.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

import tensorflow as tf

# The number of ranks, from a variable that mpirun (Open MPI, MPICH) or horovodrun sets. None without such a launcher.
RANKS_STARTED = next(
    (int(os.environ[name]) for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "HOROVOD_SIZE") if name in os.environ), None
)
hvd: Any = None
if RANKS_STARTED is not None:
    try:
        import horovod.tensorflow.keras as hvd  # type: ignore[no-redef]
        from horovod.tensorflow import broadcast_variables
    except ImportError:
        if RANKS_STARTED > 1:
            sys.exit(f"{RANKS_STARTED} processes were started, but they cannot train together without Horovod")

PIXELS = 64
CLASSES = 10
SHUFFLE_BUFFER = 4096


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the hyperparameters and the folders. SageMaker's environment variables name the default folders."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32, help="records per step and rank")
    parser.add_argument(
        "--learning-rate",
        type=float,
        default=0.001,
        help="learning rate of one rank; it is multiplied by the number of ranks",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--train", type=Path, default=os.environ.get("SM_CHANNEL_TRAIN", "data/digits/train"))
    parser.add_argument(
        "--validation", type=Path, default=os.environ.get("SM_CHANNEL_VALIDATION", "data/digits/validation")
    )
    parser.add_argument("--model_dir", help="folder for the model if SM_MODEL_DIR is not set")
    parser.add_argument("--checkpoint-dir", type=Path, default=default_checkpoint_directory())
    return parser.parse_args(arguments)


def default_checkpoint_directory() -> Path | None:
    """Return SageMaker's folder for checkpoints. Return None if this machine has no such folder."""
    if chosen := os.environ.get("SM_CHECKPOINT_DIR"):
        return Path(chosen)
    base = Path(os.environ.get("SAGEMAKER_BASE_DIR", "/opt/ml"))
    return base / "checkpoints" if base.is_dir() else None


def read_shard(folder: Path, *, rank: int, size: int) -> tf.data.Dataset:
    """Read every ``size``-th record of a channel, beginning with record ``rank``.

    Returns:
        Pairs of an image (64 floats) and a label (int64).
    """
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

    return tf.data.TFRecordDataset(files).shard(size, rank).map(parse).cache()


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


def sum_over_ranks(values: Sequence[float]) -> list[float]:
    """Return the sum of each value over all ranks. All ranks must call this function in the same order."""
    if hvd is None:
        return list(values)
    return [float(value) for value in hvd.allreduce(tf.constant(values, tf.float64), op=hvd.Sum)]


class Report(tf.keras.callbacks.Callback):
    """A callback that validates after each epoch. Each rank validates its own shard. Rank 0 prints the result."""

    def __init__(self, validation: tf.data.Dataset, *, epochs: int, samples: int, rank: int, size: int) -> None:
        """Create the callback of one rank.

        Args:
            validation: The rank's validation records, in batches.
            epochs: The number of epochs.
            samples: The number of training records per epoch of all ranks together.
            rank: The rank.
            size: The number of ranks.
        """
        super().__init__()
        self._validation = validation
        self._epochs = epochs
        self._samples = samples
        self._rank = rank
        self._size = size
        self._loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
        self._began = 0.0

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Store the time at which the epoch begins."""
        self._began = time.monotonic()

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Compute the mean loss and accuracy over the validation records of all ranks, and print them on rank 0."""
        elapsed_s = time.monotonic() - self._began
        train_loss, ranks = sum_over_ranks([(logs or {})["loss"], 1.0])
        loss = correct = records = 0.0
        for images, labels in self._validation:
            logits = self.model(images, training=False)
            loss += float(self._loss(labels, logits))
            correct += float(tf.reduce_sum(tf.cast(tf.equal(tf.argmax(logits, axis=1), labels), tf.float32)))
            records += len(labels)
        loss, correct, records = sum_over_ranks([loss, correct, records])
        if self._rank == 0:
            print(
                f"epoch: {epoch + 1}/{self._epochs} - loss: {train_loss / ranks:.4f}"
                f" - samples_per_second: {self._samples / elapsed_s:.0f}"
                f" - val_loss: {loss / records:.4f} - val_accuracy: {correct / records:.4f}",
                flush=True,
            )


class Checkpoints(tf.keras.callbacks.Callback):
    """A callback that keeps the last three checkpoints of weights, optimizer and epoch. Use it only on rank 0."""

    def __init__(self, directory: Path, model: tf.keras.Model) -> None:
        """Create the callback.

        Args:
            directory: The folder of the checkpoints. It may have checkpoints of an interrupted run.
            model: The compiled model.
        """
        super().__init__()
        self._epoch = tf.Variable(0, dtype=tf.int64)
        state = tf.train.Checkpoint(model=model, optimizer=model.optimizer, epoch=self._epoch)
        self._manager = tf.train.CheckpointManager(state, str(directory), max_to_keep=3)

    def restore(self) -> int:
        """Restore the newest checkpoint if one exists, and return the number of finished epochs."""
        if found := self._manager.restore_or_initialize():
            print(f"restored {found}", flush=True)
        return int(self._epoch)

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Save a checkpoint."""
        self._epoch.assign(epoch + 1)
        self._manager.save(checkpoint_number=epoch + 1)


def use_device(local_rank: int, local_size: int) -> None:
    """Select the GPU of this rank if the machine has GPUs, and limit TensorFlow's threads to the rank's share of cores.

    Args:
        local_rank: The number of the rank on this machine, from 0.
        local_size: The number of ranks on this machine.
    """
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    if gpus:
        tf.config.set_visible_devices(gpus[local_rank % len(gpus)], "GPU")
    tf.config.threading.set_intra_op_parallelism_threads(max(1, len(os.sched_getaffinity(0)) // local_size))
    tf.config.threading.set_inter_op_parallelism_threads(1)


def train(options: argparse.Namespace) -> None:
    """Train, and save the model and the checkpoints in SageMaker's folders."""
    # 1. Initialize.
    if hvd is not None:
        hvd.init()
    rank, size = (hvd.rank(), hvd.size()) if hvd is not None else (0, 1)
    if hvd is None:
        why = "not started by mpirun" if RANKS_STARTED is None else "Horovod is not installed"
        print(f"{why}: training in a single process", flush=True)

    # 2. One device per rank.
    use_device(*((hvd.local_rank(), hvd.local_size()) if hvd is not None else (0, 1)))

    tf.keras.utils.set_random_seed(options.seed)
    training = read_shard(options.train, rank=rank, size=size)
    validation = read_shard(options.validation, rank=rank, size=size).batch(options.batch_size)
    # Every rank must run the same number of steps. Shards differ by at most one record, so the mean, rounded down, is
    # the size of the smallest shard.
    smallest = int(sum_over_ranks([count(training)])[0]) // size
    steps = smallest // options.batch_size
    if steps == 0:
        raise SystemExit(f"--batch-size {options.batch_size} is more than the {smallest} records that each rank has")
    batches = training.shuffle(SHUFFLE_BUFFER, seed=options.seed + rank).repeat().batch(options.batch_size).prefetch(2)

    # 3. Multiply the learning rate by the number of ranks, because the gradients of the ranks are averaged.
    optimizer: Any = tf.keras.optimizers.Adam(options.learning_rate * size)
    # 4. Average the gradients.
    if hvd is not None:
        optimizer = hvd.DistributedOptimizer(optimizer)
    model = build_model()
    model.compile(optimizer, loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    optimizer.build(model.trainable_variables)

    # 6. Save checkpoints only on rank 0, so that ranks do not overwrite each other's checkpoints.
    checkpoints = Checkpoints(options.checkpoint_dir, model) if rank == 0 and options.checkpoint_dir else None
    first_epoch = checkpoints.restore() if checkpoints else 0
    # 5. Start every rank with rank 0's weights, optimizer state and epoch.
    if hvd is not None:
        broadcast_variables([*model.variables, *model.optimizer.variables], root_rank=0)
    first_epoch = int(sum_over_ranks([first_epoch])[0])

    samples = steps * options.batch_size * size
    report = Report(validation, epochs=options.epochs, samples=samples, rank=rank, size=size)
    model.fit(
        batches,
        epochs=options.epochs,
        initial_epoch=first_epoch,
        steps_per_epoch=steps,
        callbacks=[report, *([checkpoints] if checkpoints else [])],
        verbose=0,
    )
    if rank == 0:
        save(model, options)


def save(model: tf.keras.Model, options: argparse.Namespace) -> None:
    """Write a SavedModel in the layout of TensorFlow Serving, which has a folder for each version."""
    directory = os.environ.get("SM_MODEL_DIR") or options.model_dir
    if not directory:
        print("neither SM_MODEL_DIR nor --model_dir is set: the model is not saved", flush=True)
        return
    # Otherwise, export() prints a description of the model in twenty lines.
    tf.keras.utils.disable_interactive_logging()
    model.export(os.path.join(directory, "1"))
    print(f"model: {os.path.join(directory, '1')}", flush=True)


if __name__ == "__main__":
    train(parse_arguments(sys.argv[1:]))
