"""Trains a digits classifier with Horovod, as a script for SageMaker does it.

It knows nothing of fleetfit. It runs under ``fit()``, on SageMaker, under plain ``mpirun -np 2 python
entrypoints/train_horovod.py`` and alone; without Horovod it trains in one process and says so. The numbers in the
comments are those of the steps in Horovod's guide for Keras.

It prints, once per epoch and on rank 0 only, what metric definitions can pick up::

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
# Same sums in the same order on every machine, and a log without a remark about it.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

import tensorflow as tf

# What mpirun (Open MPI, MPICH) and horovodrun tell the processes they start.
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
    """Hyperparameters come as arguments; folders come from SageMaker's environment."""
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
    """The folder that the platform keeps; None on a machine that has no such platform."""
    if chosen := os.environ.get("SM_CHECKPOINT_DIR"):
        return Path(chosen)
    base = Path(os.environ.get("SAGEMAKER_BASE_DIR", "/opt/ml"))
    return base / "checkpoints" if base.is_dir() else None


def read_shard(folder: Path, *, rank: int, size: int) -> tf.data.Dataset:
    """This rank's records of a channel: every ``size``-th one.

    Returns:
        Pairs of image (64 floats) and label (int64).
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
    """The number of records."""
    return int(dataset.reduce(0, lambda total, _: total + 1))


def build_model() -> tf.keras.Model:
    """A small convolutional network. Input shape: (batch, 64); output: (batch, 10) logits."""
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
    """Adds up each value over all ranks; every rank gets the sums. All ranks must call it, in the same order."""
    if hvd is None:
        return list(values)
    return [float(value) for value in hvd.allreduce(tf.constant(values, tf.float64), op=hvd.Sum)]


class Report(tf.keras.callbacks.Callback):
    """Validates after each epoch, each rank on its own shard, and prints one line on rank 0."""

    def __init__(self, validation: tf.data.Dataset, *, epochs: int, samples: int, rank: int, size: int) -> None:
        """Takes the rank's validation records in batches, and the samples per epoch of all ranks together."""
        super().__init__()
        self._validation = validation
        self._epochs = epochs
        self._samples = samples
        self._rank = rank
        self._size = size
        self._loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
        self._began = 0.0

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Starts the clock."""
        self._began = time.monotonic()

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Averages over all ranks, weighted by records, and prints."""
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
    """Keeps the last checkpoints of weights, optimizer and epoch. Only rank 0 may have one: it alone writes."""

    def __init__(self, directory: Path, model: tf.keras.Model) -> None:
        """Takes the folder, which may have checkpoints of an interrupted run."""
        super().__init__()
        self._epoch = tf.Variable(0, dtype=tf.int64)
        state = tf.train.Checkpoint(model=model, optimizer=model.optimizer, epoch=self._epoch)
        self._manager = tf.train.CheckpointManager(state, str(directory), max_to_keep=3)

    def restore(self) -> int:
        """Continues from the newest checkpoint, if there is one; returns the number of finished epochs."""
        if found := self._manager.restore_or_initialize():
            print(f"restored {found}", flush=True)
        return int(self._epoch)

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Writes one."""
        self._epoch.assign(epoch + 1)
        self._manager.save(checkpoint_number=epoch + 1)


def use_device(local_rank: int, local_size: int) -> None:
    """Gives each rank of this machine its own GPU if there are some, and its share of the cores."""
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    if gpus:
        tf.config.set_visible_devices(gpus[local_rank % len(gpus)], "GPU")
    tf.config.threading.set_intra_op_parallelism_threads(max(1, len(os.sched_getaffinity(0)) // local_size))
    tf.config.threading.set_inter_op_parallelism_threads(1)


def train(options: argparse.Namespace) -> None:
    """Trains, and leaves the model and checkpoints in SageMaker's folders."""
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
    # Every rank must make the same number of steps. Shards differ by one record at most, so the mean rounds down to
    # the smallest.
    smallest = int(sum_over_ranks([count(training)])[0]) // size
    steps = smallest // options.batch_size
    if steps == 0:
        raise SystemExit(f"--batch-size {options.batch_size} is more than the {smallest} records that each rank has")
    batches = training.shuffle(SHUFFLE_BUFFER, seed=options.seed + rank).repeat().batch(options.batch_size).prefetch(2)

    # 3. Scale the learning rate by the ranks, whose gradients are averaged.
    optimizer: Any = tf.keras.optimizers.Adam(options.learning_rate * size)
    # 4. Average the gradients.
    if hvd is not None:
        optimizer = hvd.DistributedOptimizer(optimizer)
    model = build_model()
    model.compile(optimizer, loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    optimizer.build(model.trainable_variables)

    # 6. Checkpoints on rank 0 only, so that ranks do not overwrite each other's.
    checkpoints = Checkpoints(options.checkpoint_dir, model) if rank == 0 and options.checkpoint_dir else None
    first_epoch = checkpoints.restore() if checkpoints else 0
    # 5. Start everywhere from rank 0's weights, optimizer state and epoch.
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
    """Writes a SavedModel in the layout that TensorFlow Serving reads: a folder per version."""
    directory = os.environ.get("SM_MODEL_DIR") or options.model_dir
    if not directory:
        print("neither SM_MODEL_DIR nor --model_dir is set: the model is not saved", flush=True)
        return
    # export() would describe the model in twenty lines on stdout.
    tf.keras.utils.disable_interactive_logging()
    model.export(os.path.join(directory, "1"))
    print(f"model: {os.path.join(directory, '1')}", flush=True)


if __name__ == "__main__":
    train(parse_arguments(sys.argv[1:]))
