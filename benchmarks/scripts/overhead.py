"""One training twice in the same ranks, for ``benchmarks/overhead.py``: with Horovod by hand, and by our API.

The ways take turns, block by block. A block is a ``fit`` of one epoch; its steps are timed from the inside, the epoch's
end included. Rank 0 writes the times to ``--result``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

import horovod.tensorflow.keras as hvd
import tensorflow as tf

from container import distributed
from container.distributed.tensorflow.callbacks import KerasCallback

BATCH = 64
WARM_UP = 30
BY_HAND, OURS = "by hand", "container.distributed"


class Timer(KerasCallback):
    """Times steps; comes first among the callbacks, so that a step has all that the others do."""

    def __init__(self) -> None:
        self.begins: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Note the time."""
        self.begins.append(time.perf_counter())


class End(KerasCallback):
    """Notes when an epoch ends; comes last."""

    batch_hooks = False
    at = 0.0

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Note the time."""
        self.at = time.perf_counter()


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True, help="of a block")
    parser.add_argument("--result", required=True)
    options, _ = parser.parse_known_args()

    cluster = distributed.init()
    from train_steps_collective import build_model

    tf.random.set_seed(cluster.rank)
    batch = (tf.random.normal([BATCH, 16, 16, 1]), tf.random.uniform([BATCH], maxval=10, dtype=tf.int32))
    batches = tf.data.Dataset.from_tensors(batch).repeat().prefetch(2)

    def compiled(optimizer: Any) -> Any:
        model = build_model()
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer, loss=loss, metrics=["accuracy"])
        return model

    adam = tf.keras.optimizers.Adam
    models = {BY_HAND: compiled(hvd.DistributedOptimizer(adam())), OURS: compiled(cluster.optimizer(adam()))}
    callbacks = {
        BY_HAND: lambda: [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()],
        OURS: cluster.callbacks,
    }

    def block(way: str, steps: int) -> dict[str, float]:
        timer, end = Timer(), End()
        models[way].fit(batches, steps_per_epoch=steps, verbose=0, callbacks=[timer, *callbacks[way](), end])
        durations = [after - before for before, after in zip(timer.begins, timer.begins[1:], strict=False)]
        return {
            "steps_per_second": steps / (end.at - timer.begins[0]),
            "median_step_s": statistics.median(durations),
        }

    step_s = max(block(way, WARM_UP)["median_step_s"] for way in models)
    steps = cluster.broadcast_object(max(WARM_UP, int(options.seconds / step_s)))
    found: dict[str, list[dict[str, float]]] = {way: [] for way in models}
    for number in range(options.rounds):
        for way in (BY_HAND, OURS) if number % 2 == 0 else (OURS, BY_HAND):
            found[way].append(block(way, steps))
        if cluster.is_chief:
            print(f"round {number + 1}: " + ", ".join(f"{way} {of[-1]}" for way, of in found.items()), flush=True)
    if cluster.is_chief:
        with open(options.result, "w") as file:
            json.dump({"steps": steps, "values": found}, file)


if __name__ == "__main__":
    main()
