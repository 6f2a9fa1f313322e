"""Implement the Keras callback that saves and restores checkpoints.

The callback saves at the *beginning* of a batch, when the batch's number equals the number of finished batches. If the
callback saved at the end of a batch, both versions of Keras would wait for the batch's metrics from the device.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from container.checkpoint.errors import EpochBeginsAnew
from container.checkpoint.keras_callback import KerasCallback

if TYPE_CHECKING:
    from container.checkpoint.checkpointer import Checkpointer, Restored

#: The reason why an interrupted epoch starts over if the callback has no data source.
_NO_DATA = "continuing within an epoch needs callback(data=…), which was not given"


class CheckpointCallback(KerasCallback):
    """A Keras callback that saves at a Checkpointer's interval, and restores when the training begins.

    Args:
        checkpointer: The Checkpointer.
        data: The data source, if the data source can continue within an epoch. Otherwise None.
        metadata: Metadata to store with each checkpoint, or a function that returns the metadata.
        restore: Whether to restore a checkpoint when the training begins.

    Attributes:
        restored: The restored checkpoint. None before the training begins, and if no checkpoint was restored.
    """

    #: For Keras 3: the methods at a batch's end may run later, in another thread.
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
        self._step = 0  # finished steps at the beginning of the epoch, or of its remaining part
        self._batch = 0  # finished batches of the epoch
        self._skip = 0  # batches of the epoch that were already finished when the epoch was resumed
        self._last_saved: int | None = None
        self._measured = False
        self._unrated = False  # whether the message about a missing metric was printed
        self.restored: Restored | None = None

    def request(self) -> None:
        """Request a save at the next batch, regardless of the interval.

        This method may be called in a signal handler or in another thread.
        """
        self._requested = True

    def finished_steps(self) -> int:
        """Return the number of finished steps, including those before a restart.

        During ``on_train_batch_end``, the number includes the current step.
        """
        return self._step + max(0, self._batch - self._skip)

    # --- methods that Keras calls ---

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Restore a checkpoint, and set the epoch and batch at which ``fit`` continues.

        If a checkpoint was already restored, or ``restore`` is false, no checkpoint is restored here.
        """
        checkpointer = self._checkpointer
        # All ranks must take the same branches here, because restoring and creating variables are collective
        # operations.
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
        """Begin a new epoch, or the rest of an interrupted epoch."""
        self._leave_keras_alone()
        self._epoch = epoch
        self._batch = self._skip

    def on_train_batch_begin(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Save a checkpoint on rank 0 if a save is due or was requested."""
        finished = batch
        if not self._measured and finished > self._skip:
            self._measure()
        if finished <= self._skip or self._checkpointer.cluster.rank != 0 or not self._implements_train_batch_hooks():
            return
        step = self._step + finished - self._skip
        if self._requested or (self._checkpointer.schedule.due(step) and self._may_save()):
            self._save(step, epoch=self._epoch, batch=finished, wait=self._requested)

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Record the number of finished batches. If one execution has several steps, ``batch`` is the number of the
        last step.
        """
        self._batch = max(self._batch, batch + 1)

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Save a checkpoint on rank 0 if a save is due or was requested, if this is the last epoch, or if this
        checkpoint may be the best checkpoint.
        """
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
        if checkpointer.best is not None and not rated and not self._unrated:
            self._unrated = True
            self._say(
                f"epoch {epoch + 1} has no metric {checkpointer.best.metric!r}, so no checkpoint of this epoch can be "
                f"the best. Its metrics are: {', '.join(metrics) or 'none'}"
            )
        due = checkpointer.schedule.due(self._step, finished_epoch=epoch + 1) and self._may_save()
        # In the last epoch, save now: afterwards, Keras may replace the weights by averages (use_ema), from which a
        # training cannot be continued.
        last = epoch + 1 >= int(self.params.get("epochs") or 0) or bool(getattr(self.model, "stop_training", False))
        if self._requested or rated or due or last:
            self._save(self._step, epoch=epoch + 1, batch=0, metrics=metrics, wait=self._requested)

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Save the last step if it is not saved yet. Wait until all saved checkpoints are on the disk."""
        self._leave_keras_alone()
        checkpointer = self._checkpointer
        if checkpointer.cluster.rank != 0:
            return
        if self._step != self._last_saved and self._step > 0:
            self._save(self._step, epoch=self._epoch, batch=0, metrics=logs)
        checkpointer.wait()

    # --- methods that tf_keras calls ---

    def _implements_train_batch_hooks(self) -> bool:
        # Under parameter servers, a batch's number counts the scheduled batches, not the finished ones.
        strategy = getattr(self.model, "distribute_strategy", None)
        return not getattr(strategy, "_should_use_with_coordinator", False)

    def maybe_load_initial_counters_from_ckpt(
        self, steps_per_epoch: int | None, initial_epoch: int, mode: Any = None
    ) -> tuple[int, int]:
        """Return the epoch and batch at which ``fit`` resumes."""
        self._leave_keras_alone()
        return (self._epoch, self._skip) if self._epoch >= initial_epoch else (initial_epoch, 0)

    # --- private methods ---

    def _measure(self) -> None:
        """Create, on every rank, the variables that a save reads. Tell the schedule how many bytes a save writes.

        Some models create their variables only in the first step. For such a model, this method is called again after
        the first step.
        """
        size = self._checkpointer.state_bytes(self.model)
        if size is not None:
            self._checkpointer.schedule.expect(size)
            self._measured = True

    def _begin_data(self) -> None:
        """Tell the data source that the training begins. Print a warning, with the reason, if an interrupted epoch
        would start over after a restart.
        """
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
        """Set the epoch and batch at which ``fit`` and the data source continue."""
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
        """Make Keras 3 skip the finished batches of the interrupted epoch without training.

        Keras 3 starts every epoch at its first batch. A shorter first epoch is not a solution, because Keras 3 would
        use the shorter length for all epochs.
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
        """Reset the epoch and batch that this callback has set in the model.

        A later ``fit`` then starts at the ``initial_epoch`` that is passed to that call.
        """
        if hasattr(self.model, "_initial_epoch"):
            self.model._initial_epoch = None
        elif getattr(self.model, "_training_state", None) is self:
            self.model._training_state = None

    def _batches_of_epoch(self) -> int:
        """Return the number of batches of the epoch that has just ended."""
        planned = self.params.get("steps")
        if not self._implements_train_batch_hooks():
            return int(planned or 0)
        # Keras 3 counts a last execution with fewer steps as a full one.
        return min(self._batch, int(planned)) if planned else self._batch

    def _may_save(self) -> bool:
        """Return whether a save may start now.

        Return False if the interval is "auto" and the save would have to wait for the disk. Otherwise return True.
        """
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
