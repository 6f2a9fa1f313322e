"""A MultiWorkerMirroredStrategy training whose steps are timed from the inside, for ``benchmarks/steps.py``.

The network of ``train_steps.py`` on random images. Each worker finds its place in TF_CONFIG; worker 0 writes the steps'
times to ``--result``.
"""

from __future__ import annotations

import argparse
import json
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# Keras 3 cannot handle this strategy's values.
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

import tensorflow as tf
import timing

BATCH = 64
WARM_UP = 50


def build_model() -> tf.keras.Model:
    """The network. Input shape: (batch, 16, 16, 1); output: (batch, 10) logits."""
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.Input([16, 16, 1]),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.MaxPool2D(),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPool2D(),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dense(10),
        ]
    )


def main() -> None:
    """Train for a number of steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--result", required=True)
    options, _ = parser.parse_known_args()

    rank = int(json.loads(os.environ["TF_CONFIG"])["task"]["index"])
    tf.config.threading.set_intra_op_parallelism_threads(1)
    ring = tf.distribute.experimental.CommunicationOptions(
        implementation=tf.distribute.experimental.CommunicationImplementation.RING
    )
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=ring)
    tf.random.set_seed(rank)
    images = tf.random.normal([BATCH, 16, 16, 1])
    labels = tf.random.uniform([BATCH], maxval=10, dtype=tf.int32)
    with strategy.scope():
        model = build_model()
        optimizer = tf.keras.optimizers.SGD(0.01)
        optimizer.build(model.trainable_variables)

    def train() -> tf.Tensor:
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def step() -> tf.Tensor:
        return strategy.run(train)

    def block(number: int) -> None:
        loss = step()
        if number % 100 == 0:
            print(f"rank {rank} step {number} loss {float(loss):.4f}", flush=True)

    for _ in range(WARM_UP):
        step()
    durations = timing.timed(block, options.steps)
    if rank == 0:
        timing.write(options.result, durations)


if __name__ == "__main__":
    main()
