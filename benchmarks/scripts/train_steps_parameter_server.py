"""A training with parameter servers whose steps are timed from the inside, for ``benchmarks/steps.py``.

The network of ``train_steps_collective.py`` on random images. Each process finds its task in TF_CONFIG: servers and
workers serve, the chief schedules steps on the workers in blocks, and writes the steps' times to ``--result``.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# Under Keras 3 the optimizer's iteration counter loses updates.
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

import tensorflow as tf
import timing
from train_steps_collective import BATCH, build_model

#: Steps that are scheduled together; then the chief waits for them, as it would at an epoch's end.
BLOCK = 20
WARM_UP_BLOCKS = 5
#: As fit()'s own servers have it: each worker's functions wait for the others' variables.
SERVER_THREADS = 4


def serve(resolver: tf.distribute.cluster_resolver.TFConfigClusterResolver) -> None:
    """What servers and workers do, until they are ended."""
    config = tf.compat.v1.ConfigProto()
    config.inter_op_parallelism_threads = SERVER_THREADS
    config.intra_op_parallelism_threads = 1
    server = tf.distribute.Server(
        resolver.cluster_spec(),
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        protocol="grpc",
        config=config,
    )
    server.join()


def main() -> None:
    """Train for a number of steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--result", required=True)
    options, _ = parser.parse_known_args()

    tf.config.threading.set_intra_op_parallelism_threads(1)
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type != "chief":
        serve(resolver)
        return
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model = build_model()
        optimizer = tf.keras.optimizers.SGD(0.01)
        optimizer.build(model.trainable_variables)

    def dataset(context: tf.distribute.InputContext) -> tf.data.Dataset:
        images = tf.random.stateless_normal([BATCH, 16, 16, 1], seed=[1, 2])
        labels = tf.random.stateless_uniform([BATCH], seed=[3, 4], maxval=10, dtype=tf.int32)
        return tf.data.Dataset.from_tensors((images, labels)).repeat()

    @tf.function
    def make_datasets() -> tf.data.Dataset:
        return strategy.distribute_datasets_from_function(dataset)

    def train(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def step(batches: tf.data.Iterator) -> tf.Tensor:
        return strategy.run(train, args=next(batches))

    batches = iter(coordinator.create_per_worker_dataset(make_datasets))

    def block(number: int) -> None:
        losses = [coordinator.schedule(step, args=(batches,)) for _ in range(BLOCK)]
        coordinator.join()
        if number % 5 == 0:
            print(f"step {number * BLOCK} loss {float(losses[-1].fetch()):.4f}", flush=True)

    timing.timed(block, WARM_UP_BLOCKS)
    timing.write(options.result, timing.timed(block, max(1, options.steps // BLOCK)), steps_per_block=BLOCK)


if __name__ == "__main__":
    main()
