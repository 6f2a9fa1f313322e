"""A Horovod training whose steps are timed from the inside, for ``benchmarks/steps.py``.

A small convolutional network on random images, with an all-reduce of the gradients in every step and a line printed
now and then, as training scripts do. Rank 0 writes the steps' times to ``--result``.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import horovod.tensorflow as hvd
import tensorflow as tf
import timing

BATCH = 64
WARM_UP = 50


def main() -> None:
    """Train for a number of steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--result", required=True)
    options, _ = parser.parse_known_args()

    hvd.init()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.random.set_seed(hvd.rank())
    images = tf.random.normal([BATCH, 16, 16, 1])
    labels = tf.random.uniform([BATCH], maxval=10, dtype=tf.int32)
    variables = [
        tf.Variable(tf.random.stateless_normal(shape, seed=[7, number]) * 0.05)
        for number, shape in enumerate([[3, 3, 1, 16], [3, 3, 16, 32], [4 * 4 * 32, 128], [128, 10]])
    ]

    @tf.function
    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            value = images
            for kernel in variables[:2]:
                value = tf.nn.max_pool2d(tf.nn.relu(tf.nn.conv2d(value, kernel, 1, "SAME")), 2, 2, "SAME")
            value = tf.nn.relu(tf.reshape(value, [BATCH, -1]) @ variables[2]) @ variables[3]
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, value))
        gradients = hvd.grouped_allreduce(tape.gradient(loss, variables), op=hvd.Average)
        for variable, gradient in zip(variables, gradients, strict=True):
            variable.assign_sub(0.01 * gradient)
        return loss

    def block(number: int) -> None:
        loss = step()
        if number % 100 == 0:
            print(f"rank {hvd.rank()} step {number} loss {float(loss):.4f}", flush=True)

    for _ in range(WARM_UP):
        step()
    durations = timing.timed(block, options.steps)
    if hvd.rank() == 0:
        timing.write(options.result, durations)


if __name__ == "__main__":
    main()
