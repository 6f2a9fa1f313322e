"""Train a digits classifier with parameter servers and a ClusterCoordinator, in an ordinary script for SageMaker.

The script does not use fleetfit. Each process reads its task from TF_CONFIG, as in TensorFlow's guide "Parameter server
training with ParameterServerStrategy". The chief schedules steps on the workers. The workers update the variables on
the parameter servers asynchronously. TensorFlow does not end parameter servers and workers. Their launcher must end
these processes after the chief has ended.

Once per epoch, the chief prints a line with values for metric definitions such as these::

    - loss: ([0-9.]+)    samples_per_second: ([0-9.]+)    val_accuracy: ([0-9.]+)
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

# With Keras 3, the optimizer's iteration counter loses updates. Set this variable before TensorFlow is imported.
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# Without oneDNN, sums have the same order on every machine, and TensorFlow prints no message about this order.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

import tensorflow as tf

PIXELS = 64
CLASSES = 10
SHUFFLE_BUFFER = 4096
# A server needs more threads than the number of workers, because all workers may wait for it at the same time.
SPARE_THREADS = 2


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the hyperparameters and the folders. SageMaker's environment variables name the default folders."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32, help="records per step of each worker")
    parser.add_argument("--learning-rate", type=float, default=0.001)
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


def serve(resolver: tf.distribute.cluster_resolver.TFConfigClusterResolver) -> None:
    """Run a parameter server or a worker until this process is killed."""
    config = tf.compat.v1.ConfigProto()
    config.inter_op_parallelism_threads = len(resolver.cluster_spec().as_dict()["worker"]) + SPARE_THREADS
    server = tf.distribute.Server(
        resolver.cluster_spec(),
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        protocol="grpc",
        config=config,
    )
    server.join()


def coordinate(resolver: tf.distribute.cluster_resolver.TFConfigClusterResolver, options: argparse.Namespace) -> None:
    """Run the chief: schedule the steps on the workers, evaluate after each epoch, and save the model."""
    workers = len(resolver.cluster_spec().as_dict()["worker"])
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    tf.keras.utils.set_random_seed(options.seed)
    with strategy.scope():
        model = build_model()
        optimizer = tf.keras.optimizers.Adam(options.learning_rate)
        optimizer.build(model.trainable_variables)
    # Without reduction, because within a strategy's scope the script must compute the mean over a batch itself.
    loss_object = tf.keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction=tf.keras.losses.Reduction.NONE
    )

    def for_worker(context: tf.distribute.InputContext) -> tf.data.Dataset:
        worker = tf.distribute.coordinator.experimental_get_current_worker_index()
        mine = read(options.train).shard(workers, worker)
        return mine.shuffle(SHUFFLE_BUFFER).repeat().batch(options.batch_size).prefetch(2)

    @tf.function
    def make_datasets() -> tf.data.Dataset:
        return strategy.distribute_datasets_from_function(for_worker)

    @tf.function
    def step(batches: tf.data.Iterator) -> tf.Tensor:
        def train(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(loss_object(labels, model(images, training=True)))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return strategy.run(train, args=next(batches))

    batches = iter(coordinator.create_per_worker_dataset(make_datasets))
    steps = count(read(options.train)) // options.batch_size
    accuracy = make_accuracy(options.validation)
    for epoch in range(options.epochs):
        began = time.monotonic()
        losses = [coordinator.schedule(step, args=(batches,)) for _ in range(steps)]
        coordinator.join()
        elapsed_s = time.monotonic() - began
        loss = sum(float(value) for value in coordinator.fetch(losses)) / steps
        print(
            f"epoch: {epoch + 1}/{options.epochs} - loss: {loss:.4f}"
            f" - samples_per_second: {steps * options.batch_size / elapsed_s:.0f}"
            f" - val_accuracy: {accuracy(model):.4f}",
            flush=True,
        )
    print(f"updates: {int(optimizer.iterations)} of {steps * options.epochs}", flush=True)
    save(model, options)


def make_accuracy(folder: Path) -> Callable[[tf.keras.Model], float]:
    """Return a function that returns a model's accuracy, from 0 to 1, over all records of a channel.

    The function copies the model from the parameter servers and evaluates the copy in this process. Every record thus
    counts exactly once.
    """
    records = read(folder)
    images, labels = next(iter(records.batch(count(records))))
    copy = build_model()

    def accuracy(model: tf.keras.Model) -> float:
        copy.set_weights(model.get_weights())
        found = tf.argmax(copy(images, training=False), axis=1)
        return float(tf.reduce_mean(tf.cast(tf.equal(found, labels), tf.float32)))

    return accuracy


def save(model: tf.keras.Model, options: argparse.Namespace) -> None:
    """Write a SavedModel of a local copy of the model to SageMaker's folder or ``--model_dir``.

    The original model cannot be saved here, because each parameter server would write its variables on its own host.
    """
    directory = os.environ.get("SM_MODEL_DIR") or options.model_dir
    if not directory:
        print("neither SM_MODEL_DIR nor --model_dir is set: the model is not saved", flush=True)
        return
    copy = build_model()
    copy.set_weights(model.get_weights())
    tf.saved_model.save(copy, os.path.join(directory, "1"))
    print(f"model: {os.path.join(directory, '1')}", flush=True)


def main(options: argparse.Namespace) -> None:
    """Run this process's task from TF_CONFIG: a parameter server, a worker, or the chief."""
    if "chief" not in json.loads(os.environ.get("TF_CONFIG") or "{}").get("cluster", {}):
        raise SystemExit(
            "TF_CONFIG names no cluster with a chief. Start this script with a parameter_server distribution"
        )
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        serve(resolver)
    else:
        coordinate(resolver, options)


if __name__ == "__main__":
    main(parse_arguments(sys.argv[1:]))
