"""The Keras callback.

It is no subclass of either Keras' ``Callback``: it has the methods that both call, so that one class serves both and
nothing of theirs is imported.

It saves at the *beginning* of a batch, when as many batches are finished as the batch's number says: neither Keras
then waits for metrics from the device, as they would at a batch's end.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from container.checkpoint.errors import EpochBeginsAnew

if TYPE_CHECKING:
    from container.checkpoint.checkpointer import Checkpointer, Restored

#: What Keras calls and this has no use for.
_UNUSED = (
    "on_batch_begin",
    "on_batch_end",
    *(f"on_{mode}_{when}" for mode in ("test", "predict") for when in ("begin", "end", "batch_begin", "batch_end")),
)

#: Why an interrupted epoch starts over where nothing was given that could continue within it.
_NO_DATA = "continuing within an epoch needs callback(data=…), which was not given"


class CheckpointCallback:
    """Saves as a Checkpointer's interval says; restores when the training begins.

    Args:
        checkpointer: The Checkpointer.
        data: The data source, if it can continue within an epoch.
        metadata: To be kept with each checkpoint, or a function that gives it.
        restore: Whether to restore.

    Attributes:
        restored: What was restored, once the training has begun.
    """

    #: For tf_keras: nothing needs to be fetched from the device for us.
    _supports_tf_logs = True
    #: For tf_keras under a multi-worker strategy: every rank takes part.
    _chief_worker_only = False
    #: For Keras 3: what we do at a batch's end may be done by another thread, later.
    async_safe = True

    def __init__(
        self, checkpointer: Checkpointer, *, data: Any = None, metadata: Any = None, restore: bool = True
    ) -> None:
        self._checkpointer = checkpointer
        self._data = data
        self._metadata = metadata
        self._restore = restore
        self._requested = False
        self._epoch = 0
        self._step = 0  # at the beginning of the epoch, or of what is left of it
        self._batch = 0  # finished batches of the epoch
        self._skip = 0  # batches of the epoch that were finished when it was resumed
        self._last_saved: int | None = None
        self._measured = False
        self.restored: Restored | None = None
        self.model: Any = None
        self.params: dict[str, Any] = {}

    def request(self) -> None:
        """Save at the next batch, whatever the interval; may be called from a signal handler or a thread."""
        self._requested = True

    def finished_steps(self) -> int:
        """Return how many steps are finished, including those before a restart; in ``on_train_batch_end``, also the
        current one.
        """
        return self._step + max(0, self._batch - self._skip)

    # --- what Keras calls ---

    def set_params(self, params: dict[str, Any]) -> None:
        """Keep ``fit``'s parameters."""
        self.params = params

    def set_model(self, model: Any) -> None:
        """Keep the model."""
        self.model = model

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Restore, and tell ``fit`` where to go on."""
        checkpointer = self._checkpointer
        # Every rank takes the same way here, whatever it has saved: restoring and making variables need all of them.
        if self._restore and not checkpointer.has_restored:
            checkpointer.restore(self.model)
        self.restored = checkpointer.take_restored()
        self._begin_data()
        if self.restored is not None:
            self._go_on(self.restored)
        progress = checkpointer.progress
        self._step = progress.step if progress is not None else 0
        self._last_saved = self._step if progress is not None else None
        checkpointer.schedule.start(self._step)
        self._measured = False
        self._measure()

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Begin a new epoch, or the rest of one."""
        self._leave_keras_alone()
        self._epoch = epoch
        self._batch = self._skip

    def on_train_batch_begin(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Save if it is time."""
        finished = batch
        if not self._measured and finished > self._skip:
            self._measure()
        if finished <= self._skip or self._checkpointer.cluster.rank != 0 or not self._implements_train_batch_hooks():
            return
        step = self._step + finished - self._skip
        if self._requested or (self._checkpointer.schedule.due(step) and self._may_save()):
            self._save(step, epoch=self._epoch, batch=finished, wait=self._requested)

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Count. With several steps per execution the number is that of the last."""
        self._batch = max(self._batch, batch + 1)

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Save if it is time, or if this may be the best."""
        self._step += self._batches_of_epoch() - self._skip
        self._skip = self._batch = 0
        self._epoch = epoch + 1
        if not self._measured:
            self._measure()
        checkpointer = self._checkpointer
        if checkpointer.cluster.rank != 0:
            return
        metrics = logs or {}
        rated = checkpointer.best is not None and checkpointer.best.metric in metrics
        due = checkpointer.schedule.due(self._step, finished_epoch=epoch + 1) and self._may_save()
        # At the end Keras may put averages in the place of the weights (use_ema): we save what can be gone on from.
        last = epoch + 1 >= int(self.params.get("epochs") or 0) or bool(getattr(self.model, "stop_training", False))
        if self._requested or rated or due or last:
            self._save(self._step, epoch=epoch + 1, batch=0, metrics=metrics, wait=self._requested)

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Save what is not saved yet, and wait for the disk."""
        self._leave_keras_alone()
        checkpointer = self._checkpointer
        if checkpointer.cluster.rank != 0:
            return
        if self._step != self._last_saved and self._step > 0:
            self._save(self._step, epoch=self._epoch, batch=0, metrics=logs)
        checkpointer.wait()

    # --- what tf_keras asks ---

    def _implements_train_batch_hooks(self) -> bool:
        # Under parameter servers a batch's number says how many have been scheduled, not how many are finished.
        strategy = getattr(self.model, "distribute_strategy", None)
        return not getattr(strategy, "_should_use_with_coordinator", False)

    def _implements_test_batch_hooks(self) -> bool:
        return False

    def _implements_predict_batch_hooks(self) -> bool:
        return False

    def maybe_load_initial_counters_from_ckpt(
        self, steps_per_epoch: int | None, initial_epoch: int, mode: Any = None
    ) -> tuple[int, int]:
        """Return the epoch and batch at which ``fit`` resumes."""
        self._leave_keras_alone()
        return (self._epoch, self._skip) if self._epoch >= initial_epoch else (initial_epoch, 0)

    # --- within ---

    def _measure(self) -> None:
        """On every rank, make the variables that a save reads, and give the schedule their size.

        A model that gets its variables in its first step is looked at again after that.
        """
        size = self._checkpointer.state_bytes(self.model)
        if size is not None:
            self._checkpointer.schedule.expect(size)
            self._measured = True

    def _begin_data(self) -> None:
        """Say at the beginning, and not when it is too late, that an epoch that is interrupted begins anew."""
        begin = getattr(self._data, "training_begins", None)
        no_data = _NO_DATA if self._data is None else ""
        why = begin(self.params.get("steps")) if begin is not None else no_data
        within = self._implements_train_batch_hooks() and self._checkpointer.every.unit.value != "epochs"
        if why and within:
            self._say(f"after a restart, an interrupted epoch starts over: {why}")

    def _say(self, text: str) -> None:
        if self._checkpointer.cluster.rank == 0:
            print(f"checkpoints: {text}", file=sys.stderr, flush=True)

    def _go_on(self, restored: Restored) -> None:
        """Tell ``fit`` where to go on, and the data source."""
        progress = restored.progress
        self._epoch = progress.epoch
        try:
            if progress.batch:
                if self._data is None:
                    raise EpochBeginsAnew(_NO_DATA)
                if self._data.resume(progress.position):
                    self._skip = progress.batch
                else:
                    self._epoch += 1
            elif self._data is not None and progress.position is not None:
                self._data.resume(progress.position)
        except EpochBeginsAnew as why:
            if progress.batch:
                self._say(
                    f"epoch {progress.epoch + 1} was interrupted after {progress.batch} batches and starts over: {why}"
                )
        if hasattr(self.model, "_initial_epoch"):  # Keras 3
            self.model._initial_epoch = self._epoch
            self._pass_over()
        else:
            self.model._training_state = self

    def _pass_over(self) -> None:
        """Let Keras 3, which begins every epoch with its first batch, go through finished batches without training.

        A shorter first epoch would do as well, if Keras 3 did not take its length for that of all epochs.
        """
        model, train = self.model, self.model.train_function
        left = self._skip // max(1, int(getattr(model, "steps_per_execution", 1)))

        def pass_over(iterator: Any) -> Any:
            nonlocal left
            if left:
                left -= 1
                return {}
            model.train_function = train
            return train(iterator)

        if left:
            model.train_function = pass_over

    def _leave_keras_alone(self) -> None:
        """Let a later ``fit`` begin where it is told to."""
        if hasattr(self.model, "_initial_epoch"):
            self.model._initial_epoch = None
        elif getattr(self.model, "_training_state", None) is self:
            self.model._training_state = None

    def _batches_of_epoch(self) -> int:
        """Return how many batches the ending epoch had."""
        planned = self.params.get("steps")
        if not self._implements_train_batch_hooks():
            return int(planned or 0)
        # Keras 3 counts a last execution of fewer steps as a full one.
        return min(self._batch, int(planned)) if planned else self._batch

    def _may_save(self) -> bool:
        """Return whether to save: an interval that the budget decides never makes the training wait for the disk."""
        return self._checkpointer.every.unit.value != "auto" or self._checkpointer.idle

    def _save(
        self, step: int, *, epoch: int, batch: int, metrics: Mapping[str, Any] | None = None, wait: bool = False
    ) -> None:
        self._requested = False
        self._last_saved = step
        metadata = self._metadata() if callable(self._metadata) else self._metadata
        self._checkpointer.save(
            self.model,
            epoch=epoch,
            step=step,
            batch=batch,
            position=self._data.position(epoch, batch) if self._data is not None else None,
            metrics=metrics,
            metadata=metadata,
            wait=wait,
        )


def _nothing(*args: Any, **kwargs: Any) -> None:
    pass


_nothing._is_default = True  # type: ignore[attr-defined] # for Keras 3: there is nothing to call
for _name in _UNUSED:
    setattr(CheckpointCallback, _name, staticmethod(_nothing))
