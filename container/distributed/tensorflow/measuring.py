"""Measure steps on every rank, and what a model sends, for ``job.result()``.

Each rank tells the distribution of its steps once an epoch, as a few numbers, so that neither the record nor the
training notices their count. Where gradients are reduced, a rank also tells how long it waited between its own last
gradient and the last reduced one: transfers that nothing hides any more, and the wait for slower ranks. A rank whose
own work takes longest waits least.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from container.contract import events
from container.contract.durations import Durations
from container.distributed.tensorflow import optimizers
from container.distributed.tensorflow.hooks import Callback, Logs

if TYPE_CHECKING:
    from container.distributed.tensorflow.cluster import Cluster

#: A sign of life, so that a long silent epoch is not taken for a hang; in seconds.
SIGN_OF_LIFE_S = 5.0


class Laps(Callback):
    """Counts and times steps and epochs, and reports them. It comes before callbacks that look at its counts.

    Args:
        cluster: The cluster.

    Attributes:
        epoch_s: Seconds that the steps of the last epoch took, without validation and what else callbacks do.
        steps: Finished steps of the epoch.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.batch_hooks = not cluster.coordinates
        self.epoch_s = 0.0
        self.steps = 0
        self._before = 0  # steps of earlier epochs
        self._told = False
        self._began = self._last = self._spoke = 0.0
        self._settled = False  # whether the first step, in which functions are traced, is over
        self._durations = Durations()
        self._exchange = (0.0, 0)

    def finished_steps(self) -> int:
        """Return how many steps are finished."""
        return self._before + self.steps

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """Start the clock."""
        self._began = self._last = self._spoke = time.monotonic()
        self._before, self.steps = self.finished_steps(), 0
        self._durations = Durations()

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Count one more step, or several that were one execution; report the first, then signs of life."""
        now = time.monotonic()
        steps = batch + 1 - self.steps
        self.steps = batch + 1
        if self._settled and steps > 0:
            self._durations.add((now - self._last) / steps, steps)
        elif not self._settled:
            self._settled = True
            events.emit("phase", name="first_step")
            self._exchanged()  # ranks do not finish tracing at once: that wait says nothing about steps
        if now - self._spoke > SIGN_OF_LIFE_S:
            self._spoke = now
            events.emit("progress", batch=batch)
        self._last = now

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Tell."""
        now = time.monotonic()
        if self.batch_hooks:
            self.epoch_s = self._last - self._began
        else:
            self.epoch_s = now - self._began
            self.steps = int(self.params.get("steps") or 0)
        if not self._told:
            self._told = True
            self._describe_model()
        found: dict[str, Any] = {
            "epoch": epoch + 1,
            "steps": self.steps,
            "seconds": round(self.epoch_s, 6),
            "batch_size": self._cluster.global_batch_size,
        }
        if self.batch_hooks:
            found["durations"] = self._durations.to_dict()
            found.update(self._exchanged())
        if self.batch_hooks or self._cluster.is_chief:
            events.emit("steps", **found)

    def _exchanged(self) -> dict[str, Any]:
        """Return how long this rank waited for reduced gradients since the last call, and in how many steps."""
        reduction = optimizers.reduction_of(getattr(self.model, "optimizer", None))
        if reduction is None or reduction.waited_s is None:
            return {}
        total_s, count = float(reduction.waited_s.numpy()), int(reduction.reductions.numpy())
        before_s, before = self._exchange
        self._exchange = (total_s, count)
        found: dict[str, Any] = {"exchange_s": round(total_s - before_s, 6), "exchanges": count - before}
        if reduction.whole_steps is not None:
            found["compressed_steps"] = int(reduction.steps.numpy()) - int(reduction.whole_steps.numpy())
        return found

    def _describe_model(self) -> None:
        if not self._cluster.is_chief:
            return
        reduction = optimizers.reduction_of(getattr(self.model, "optimizer", None))
        sizes = [_bytes(variable) for variable in self.model.trainable_variables]
        events.emit(
            "model",
            parameters=sum(_count(variable) for variable in self.model.weights),
            trainable=sum(_count(variable) for variable in self.model.trainable_variables),
            gradient_bytes=sum(sizes),
            largest_bytes=max(sizes, default=0),
            tensors=len(sizes),
            compression=reduction.compression if reduction is not None else None,
        )


def _count(variable: Any) -> int:
    return int(np.prod([int(size) for size in variable.shape], dtype=np.int64))


def _bytes(variable: Any) -> int:
    kind = getattr(variable.dtype, "name", variable.dtype)
    return _count(variable) * (8 if "64" in str(kind) else 2 if "16" in str(kind) else 4)
