"""Measure the durations of steps on every rank, and the size of a model's gradients, for ``job.result()``.

After each epoch, each rank reports the distribution of its step times. The distribution consists of a few numbers, so
that many steps do not enlarge the job's record or slow the training. If gradients are reduced, a rank also reports its
waiting time: the time between its own last gradient and the last reduced gradient. The waiting time consists of
transfers that do not overlap with computation, and of the wait for slower ranks. The slowest rank has the shortest
waiting time.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from container.checkpoint.keras_callback import KerasCallback, Logs
from container.contract import events
from container.contract.durations import Durations
from container.contract.events import SIGN_OF_LIFE_S
from container.distributed.tensorflow import optimizers

if TYPE_CHECKING:
    from container.distributed.tensorflow.cluster import Cluster


class Laps(KerasCallback):
    """A callback that counts steps, measures the durations of steps and epochs, and reports the results. This callback
    must precede callbacks that use its counts.

    Args:
        cluster: The cluster.

    Attributes:
        epoch_s: Duration, in seconds, of the steps of the last epoch, without validation and other callbacks.
        steps: Number of finished steps of the current epoch.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.batch_hooks = not cluster.coordinates
        self.epoch_s = 0.0
        self.steps = 0
        self._epoch = 0
        self._before = 0  # number of steps in earlier epochs
        self._told = False
        self._began = self._last = self._spoke = 0.0
        self._settled = False  # whether the first step, in which functions are traced, is over
        self._durations = Durations()
        self._exchange = (0.0, 0)

    def finished_steps(self) -> int:
        """Return the number of finished steps."""
        return self._before + self.steps

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """Record the time at which the epoch begins."""
        self._began = self._last = self._spoke = time.monotonic()
        self._epoch = epoch
        self._before, self.steps = self.finished_steps(), 0
        self._durations = Durations()

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Count one more step, or several steps of one execution. Report the end of the first step, and later progress
        at intervals.
        """
        now = time.monotonic()
        steps = batch + 1 - self.steps
        self.steps = batch + 1
        if self._settled and steps > 0:
            self._durations.add((now - self._last) / steps, steps)
        elif not self._settled:
            self._settled = True
            events.emit("phase", name="first_step")
            self._exchanged()  # ranks do not finish tracing at the same time: this wait is not part of the steps
        if now - self._spoke > SIGN_OF_LIFE_S:
            self._spoke = now
            events.emit("progress", batch=batch)
            if self._cluster.is_chief:
                self._tell_within(now, logs)
        self._last = now

    def _tell_within(self, now: float, logs: Logs | None) -> None:
        """Report the number of finished steps of the epoch. Long epochs thus show progress."""
        found = {"epoch": self._epoch + 1, "step": self.steps, "seconds": round(now - self._began, 6)}
        for name, value in (("epochs", self.params.get("epochs")), ("steps", self.params.get("steps"))):
            if value:
                found[name] = int(value)
        with contextlib.suppress(KeyError, TypeError, ValueError):  # the loss is optional
            found["loss"] = float((logs or {})["loss"])
        events.emit("within_epoch", **found)

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Report the number of steps of the epoch and their durations. After the first epoch, the chief also reports
        the size of the model.
        """
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
            "epochs": int(self.params.get("epochs") or 0),
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
        """Return the fields of a report about waiting times since the last call.

        The fields are the seconds that this rank waited for reduced gradients, the number of measured steps, and the
        number of steps with compressed gradients. Return no fields if waiting times are not measured.
        """
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
