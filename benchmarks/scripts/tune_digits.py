"""A small network on scikit-learn's digits, epoch by epoch, in NumPy alone: a trial of ``benchmarks.tuning``."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import numpy as np

EPOCHS = 27


def accuracies(path: str, rate: float, momentum: float, units: int, epochs: int = EPOCHS) -> Iterator[float]:
    """Train, and yield the validation accuracy after each epoch.

    Args:
        path: An ``.npz`` with ``x`` and ``y``.
        rate: Learning rate.
        momentum: Momentum.
        units: Units of the hidden layer.
        epochs: How many.
    """
    with np.load(path) as data:
        x, y = data["x"], data["y"]
    split = len(x) * 3 // 4
    random = np.random.default_rng(0)
    weights = [random.normal(0, 0.1, (x.shape[1], units)), random.normal(0, 0.1, (units, 10))]
    speeds = [np.zeros_like(one) for one in weights]
    targets = np.eye(10)[y]
    for _ in range(epochs):
        order = random.permutation(split)
        for begin in range(0, split, 32):
            rows = order[begin : begin + 32]
            hidden = np.tanh(x[rows] @ weights[0])
            logits = hidden @ weights[1]
            chances = np.exp(logits - logits.max(axis=1, keepdims=True))
            chances /= chances.sum(axis=1, keepdims=True)
            wrong = (chances - targets[rows]) / len(rows)
            gradients = [x[rows].T @ ((wrong @ weights[1].T) * (1 - hidden**2)), hidden.T @ wrong]
            for place, gradient in enumerate(gradients):
                speeds[place] = momentum * speeds[place] - rate * gradient
                weights[place] = weights[place] + speeds[place]
        found = (np.tanh(x[split:] @ weights[0]) @ weights[1]).argmax(axis=1)
        yield float((found == y[split:]).mean())


def main() -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--momentum", type=float, required=True)
    parser.add_argument("--units", type=int, required=True)
    parser.add_argument("--epoch-seconds", type=float, default=0.0, help="an epoch takes at least this long")
    given = parser.parse_args()
    begin = time.monotonic()
    for epoch, accuracy in enumerate(accuracies(given.data, given.rate, given.momentum, given.units), start=1):
        time.sleep(max(0.0, begin + epoch * given.epoch_seconds - time.monotonic()))
        print(f"val_accuracy={accuracy}", flush=True)


if __name__ == "__main__":
    main()
