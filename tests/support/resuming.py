"""Kills whole clusters at random moments and resumes them on the same checkpoints.

The model's weights say by themselves which step they are of: its gradient is 1 everywhere, so that after ``n`` steps a
weight is ``-n * RATE``, exactly, and a larger variable counts the steps. A checkpoint whose parts are of different
steps, or that says another step than it holds, is seen.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import json
import random
import time
from pathlib import Path
from typing import Any

import clusters
import numpy as np

from container.checkpoint import tensors
from container.checkpoint.manifest import Progress
from container.checkpoint.store import CheckpointStore, Loaded
from estimators import MPI, CollectiveAllReduce

STRATEGIES: dict[str, Any] = {
    "mpi": MPI(processes_per_host=1),
    "collective_all_reduce": CollectiveAllReduce(),
}

RATE = 2.0**-10
STEPS_PER_EPOCH = 40

TRAIN = f"""
import json, os
os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import aid
from container import distributed
from container.checkpoint import Checkpointer

cluster = distributed.init()
import numpy as np
import tensorflow as tf
keras = tf.keras

class Counter(keras.layers.Layer):
    "Large enough that to write it takes its time."
    def build(self, shape):
        self.steps = self.add_weight(name="steps", shape=[500_000], initializer="zeros", trainable=False)
    def call(self, inputs, training=None):
        if training:
            self.steps.assign_add(tf.ones_like(self.steps))
        return inputs

with cluster.scope():
    model = keras.Sequential([
        keras.layers.Input([1]), Counter(), keras.layers.Dense(1, kernel_initializer="zeros"),
    ])
    model.compile(
        optimizer=cluster.optimizer(keras.optimizers.SGD({RATE})), loss=lambda y, found: tf.reduce_mean(found)
    )
checkpointer = Checkpointer(every=int(os.environ["EVERY"]), keep=int(os.environ["KEEP"]))

class Watch(keras.callbacks.Callback):
    "Says where the training goes on, and that the weights are of the step that the optimizer is at."
    first, stepped = None, False
    def on_train_begin(self, logs=None):
        self.check()
        restored = checkpointer.progress
        aid.mark(f"restored-{{aid.RANK}}", json.dumps([restored.epoch, restored.step] if restored else [0, 0]))
    def on_epoch_begin(self, epoch, logs=None):
        if self.first is None:
            self.first = epoch
            aid.mark(f"went-on-{{aid.RANK}}", json.dumps([epoch, int(model.optimizer.iterations)]))
    def on_train_batch_end(self, batch, logs=None):
        if self.stepped is False:
            self.stepped = True
            aid.mark(f"stepped-{{aid.RANK}}")
    def on_epoch_end(self, epoch, logs=None):
        self.check()
    def check(self):
        step = int(model.optimizer.iterations)
        for value in model.trainable_variables:
            assert (value.numpy() == -step * {RATE}).all(), (step, value)
        assert (model.non_trainable_variables[0].numpy() == step).all(), step

def records():
    return tf.data.Dataset.from_tensors(([1.0], [1.0])).repeat({STEPS_PER_EPOCH * 2})

model.fit(
    cluster.dataset(records, global_batch_size=2),
    steps_per_epoch=cluster.steps_per_epoch(records, global_batch_size=2),
    epochs=1_000_000,
    callbacks=[*cluster.callbacks(checkpointer), Watch()],
    verbose=0,
)
"""


class When(enum.Enum):
    """What a cluster is doing when it is killed."""

    STARTING = "starting"
    STEPPING = "stepping"  # from its first step on
    SAVING = "saving"  # from its first save on


@dataclasses.dataclass
class Kill:
    """What one cluster did until it was killed.

    Attributes:
        strategy: Its strategy's name.
        trained: Whether it came to training.
        restored: The step that it restored.
        saved: The last step that it had saved when it was killed.
        seconds: How long it took from the kill until nothing of it was left.
        staged: Whether it was killed in the middle of a save.
    """

    strategy: str
    trained: bool
    restored: int
    saved: int
    seconds: float
    staged: bool


class Killer:
    """Trains on one folder of checkpoints, is killed, and trains on.

    Args:
        make: Makes the estimators.
        checkpoints: The folder.
        choice: Decides what happens when.
    """

    def __init__(self, make: clusters.Make, checkpoints: Path, choice: random.Random) -> None:
        self._make = make
        self._checkpoints = checkpoints
        self._choice = choice
        self._store = CheckpointStore(checkpoints)

    def kill(self, strategy: str, when: When) -> Kill:
        """Start a cluster and kill everything of it at a random moment.

        Args:
            strategy: How it trains.
            when: In which part of its life.
        """
        choice, make = self._choice, self._make
        before = self._newest()
        make.clear()
        job = clusters.fit(
            make(
                TRAIN,
                hosts=2,
                distribution=STRATEGIES[strategy],
                checkpoint_s3_uri=self._checkpoints.as_uri(),
                environment={"EVERY": str(choice.choice([1, 3, 7])), "KEEP": str(choice.choice([1, 2, 3]))},
            ),
            wait=False,
        )

        def going() -> None:
            assert job.status == "InProgress", job.describe().get("FailureReason")

        if when is When.STEPPING:
            clusters.until((make.marks / "stepped-0").exists, check=going)
        elif when is When.SAVING:
            clusters.until(lambda: self._newest() != before, check=going)
        # Log-uniform, to 2 s: the moment is what is tested.
        time.sleep(choice.uniform(0, 6) if when is When.STARTING else 0.01 * 200 ** choice.random())
        seconds = self._kill_all(job)
        assert clusters.await_terminal(job) == "Failed"
        # Its supervisor may have come to say that a host was killed before it was itself.
        reason = job.describe()["FailureReason"]
        assert "supervisor lost" in reason or "SIGKILL" in reason or "was lost" in reason, reason
        return self._look(strategy, before, [event.data for event in job.record.events("checkpoint")], seconds)

    def _kill_all(self, job: Any) -> float:
        owner = clusters.supervisor(job)
        start = time.monotonic()
        # Again and again: one that is being started has no mark of the job yet.
        while family := [one for one in {owner, *clusters.below(owner.pid), *clusters.marked(job.name)} if one.alive]:
            self._choice.shuffle(family)
            for one in family:
                one.kill_if_alive()
            assert time.monotonic() - start < 20, [one.argv for one in family]
        return time.monotonic() - start

    def _look(self, strategy: str, before: Progress, events: list[dict[str, Any]], seconds: float) -> Kill:
        reported = [event["step"] for event in events if event["action"] == "saved"]
        assert not [event for event in events if event["action"] not in ("saved", "restored")], events
        restored = self._marks("restored")
        for epoch, step in restored:  # by every rank that came to it
            assert (epoch, step) == (before.epoch, before.step), (epoch, step, before)
        for epoch, iterations in self._marks("went-on"):
            assert (epoch, iterations) == (before.epoch, before.step), (epoch, iterations, before)
        for name in self._store.names():
            whole(self._store, name)
        newest = self._newest()
        assert newest.step >= max([before.step, *reported]), (newest, before, reported)
        assert newest.epoch >= before.epoch, (newest, before)
        staged = list(self._checkpoints.glob(".staging-*"))
        assert len(staged) <= 1, staged
        return Kill(strategy, bool(restored), before.step, newest.step, seconds, bool(staged))

    def _marks(self, name: str) -> list[tuple[int, int]]:
        return [tuple(json.loads(path.read_text())) for path in self._make.marks.glob(f"{name}-?")]  # type: ignore[misc]

    def _newest(self) -> Progress:
        """How far the newest checkpoint is, by its folder alone."""
        while names := self._store.names():
            with contextlib.suppress(FileNotFoundError):  # a newer one has taken its place meanwhile
                return self._store.manifest(names[-1]).progress
        return Progress()


def read(store: CheckpointStore, name: str) -> Loaded | None:
    """A checkpoint, verified; None if it has been deleted.

    The threads of a process that was killed in the middle of a deletion may hold its lock a moment longer than it.
    """
    until = time.monotonic() + 10
    while name in store.names():
        try:
            return store.read(name)  # raises for a damaged one
        except FileNotFoundError:
            assert time.monotonic() < until, f"{name} stays locked"
            time.sleep(0.02)
    return None


def whole(store: CheckpointStore, name: str) -> None:
    """A checkpoint verifies, and all its parts are of the step that it says."""
    loaded = read(store, name)
    if loaded is None:
        return
    step = loaded.manifest.progress.step
    assert int(name.rpartition("-")[2]) == step, (name, step)
    arrays = {
        name.split("/", 1)[1]: array.reshape(-1)
        for content in loaded.files.values()
        for name, array in tensors.parse(content).items()
    }
    expected = {"counter/steps": step, "dense/kernel": -step * RATE, "dense/bias": -step * RATE, "iteration": step}
    for variable, value in expected.items():
        assert (arrays[variable] == value).all(), (name, variable, np.unique(arrays[variable]))
