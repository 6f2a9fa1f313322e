"""Trainings by ``container.distributed``, elastic or not, that say of each epoch how fast its steps were.

The first epoch of each training warms up. The others are timed from the end of one to the end of the next, so that what
lies between two epochs counts.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

from container import distributed
from container.distributed.tensorflow.callbacks import Callback
from container.distributed.tensorflow.elastic import TrainingState

BATCH = 32


class Timer(Callback):
    """Writes ``epoch-N.json`` when an epoch has ended: empty for the first one of a training.

    Args:
        folder: Where to.
        steps: Steps of an epoch.
        chief: Whether this is rank 0, which alone writes.
        held: Whether the next epoch waits for the file ``go-N``.
    """

    def __init__(self, folder: Path, *, steps: int, chief: bool, held: bool) -> None:
        self._folder = folder
        self._steps = steps
        self._chief = chief
        self._held = held
        self._number = 0
        self._ends: list[float] = []
        self._commits: list[float] = []
        self._began: float | None = None

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Note the time."""
        self._ends.append(time.perf_counter())

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Tell of the epoch, and let the next one begin."""
        if self._chief:
            path = self._folder / f"epoch-{self._number}.json"
            path.with_suffix(".new").write_text(json.dumps(self._numbers(time.perf_counter()) if epoch else {}))
            path.with_suffix(".new").rename(path)
            while self._held and not (self._folder / f"go-{self._number}").exists():
                time.sleep(0.002)
        self._number += 1
        self._ends.clear()
        self._commits.clear()
        self._began = time.perf_counter()

    def _numbers(self, now: float) -> dict[str, float]:
        assert self._began is not None
        return {
            "steps_per_second": self._steps / (now - self._began),
            "median_step_s": statistics.median(b - a for a, b in itertools.pairwise(self._ends)),
            "commit_share": sum(self._commits) / (now - self._began),
            "commits": len(self._commits),
        }

    def timed(self, save: Any) -> Any:
        """``save`` of a state, timed."""

        def timed(state: Any) -> None:
            began = time.perf_counter()
            save(state)
            self._commits.append(time.perf_counter() - began)

        return timed


def main() -> None:
    """Train, once for each interval of commits."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True, help="of an epoch")
    parser.add_argument("--epochs", type=int, required=True, help="of a training")
    parser.add_argument("--commit-every", default="0", help="of each training in turn; 0 is the automatic interval")
    parser.add_argument("--held", type=int, default=0, help="whether an epoch waits until it is let")
    parser.add_argument("--folder", type=Path, required=True)
    options, _ = parser.parse_known_args()

    cluster = distributed.init()
    import tensorflow as tf

    keras = tf.keras
    (options.folder / f"rank-{cluster.rank}").write_text(str(os.getpid()))
    timer = Timer(options.folder, steps=options.steps, chief=cluster.is_chief, held=bool(options.held))
    TrainingState.save = timer.timed(TrainingState.save)  # type: ignore[method-assign]
    model = keras.Sequential(
        [
            keras.Input((256,)),
            keras.layers.Dense(512, activation="relu"),
            keras.layers.Dense(512, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    model.compile(optimizer=cluster.optimizer(keras.optimizers.Adam(0.001)), loss="mse")
    if cluster.is_chief:
        threads = tf.config.threading.get_intra_op_parallelism_threads()
        (options.folder / "threads").write_text(str(threads))
    size = cluster.size
    for every in (int(word) for word in options.commit_every.split("+")):
        cluster.fit(
            model,
            lambda: tf.data.Dataset.range(options.steps * BATCH * size),
            parse=lambda number: (tf.fill([256], tf.cast(number % 7, tf.float32)), tf.ones([10])),
            global_batch_size=BATCH * size,
            epochs=options.epochs,
            on_resize="keep_global_batch",  # so that an epoch has as many steps when a rank has been killed
            commit_every=every or None,
            callbacks=[timer],
            verbose=0,
        )


if __name__ == "__main__":
    main()
