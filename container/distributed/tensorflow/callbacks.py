"""The callbacks of ``cluster.callbacks()``.

They derive from :class:`container.distributed.tensorflow.hooks.Callback`, which both Kerases call.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from container.contract import events
from container.contract.errors import DistributedError, RefusedError
from container.contract.strategies import CollectiveAllReduce
from container.distributed.core.weight_check import STEPS, Guard
from container.distributed.tensorflow import keras_compat, optimizers
from container.distributed.tensorflow.hooks import Callback, Logs
from container.distributed.tensorflow.keras_compat import Keras
from container.distributed.tensorflow.measuring import SIGN_OF_LIFE_S, Laps
from container.distributed.tensorflow.tensorboard import Scalars, event_folder

if TYPE_CHECKING:
    from container.distributed.tensorflow.cluster import Cluster

#: Gives the metrics of a model.
Evaluate = Callable[[Any], Mapping[str, float]]
#: How often the chief of parameter servers looks for the first step, in seconds.
_POLL = 0.02
#: fp16 compression that was of no use in more than this share of the steps is worth a warning.
_USELESS = 0.5


class Synchronize(Callback):
    """Gives all ranks of a synchronous strategy rank 0's weights, and checks that they stay equal.

    At the end of each epoch, weights that are not trained (moving averages of batch normalization) become their mean
    over the ranks, and so does what Keras logs.

    Args:
        cluster: The cluster.

    Attributes:
        watches_the_end: Whether it sees that no rank stops alone: not where rank 0 decides for all.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.watches_the_end = True
        self._cluster = cluster
        self._guard = Guard(cluster.collectives)
        self._broadcast = False
        self._noted = False
        self._steps = 0
        self._epochs = 0

    def set_model(self, model: Any) -> None:
        """Keep the model, and see that its training function can be one of several ranks'."""
        super().set_model(model)
        keras_compat.require_tensorflow_backend()
        optimizer = getattr(model, "optimizer", None)
        if optimizers.is_inside_loss_scaling(optimizer):
            # On a rank whose gradients overflow it would skip the reduction that the others wait in.
            raise RefusedError(optimizers.why_apart(optimizer))
        if optimizer is not None and optimizers.is_horovods(optimizer) and keras_compat.keras_of(model) is Keras.THREE:
            raise RefusedError(
                "the model's optimizer is Horovod's DistributedOptimizer, which silently reduces nothing under Keras "
                "3. Use cluster.optimizer(…), or tf_keras (TF_USE_LEGACY_KERAS=1)."
            )
        if (
            keras_compat.keras_of(model) is Keras.THREE
            and self._cluster.strategy == CollectiveAllReduce.name
            and model.steps_per_execution > 1
        ):
            # The operations' keys are given to a function when it is called, which Keras 3 does within a loop.
            raise RefusedError(
                f"steps_per_execution={model.steps_per_execution} is not supported here: Keras 3 runs the steps in a "
                "loop, and TensorFlow's collective operations cannot run in this loop. Compile with "
                "steps_per_execution=1, or use tf_keras or Horovod."
            )
        if keras_compat.keras_of(model) is Keras.THREE and getattr(model, "jit_compile", False):
            # Keras chooses XLA by itself where there is a GPU.
            warnings.warn(
                f"XLA (jit_compile) is turned off for {model.name!r}, because XLA cannot compile reductions over "
                "ranks.",
                stacklevel=2,
            )
            model.jit_compile = False
        elif getattr(model, "_jit_compile", None):
            raise RefusedError(
                "jit_compile=True is not supported here: XLA cannot compile reductions over ranks. Compile without "
                "jit_compile."
            )

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Broadcast, if there is something to broadcast yet."""
        self._steps = self._epochs = 0
        self._noted = False
        self._broadcast = self._is_built()
        if self._broadcast:
            self._broadcast_model()

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """See that all ranks go on, if they have trained an epoch already."""
        if self._epochs and self.watches_the_end:
            self._agree(goes_on=True)

    def on_train_end(self, logs: Logs | None = None) -> None:
        """See that all ranks stop here."""
        if self._epochs and self.watches_the_end:
            self._agree(goes_on=False)

    def _agree(self, *, goes_on: bool) -> None:
        """Compare what the ranks do next: one that stopped alone would leave the others waiting in the next step."""
        choices = self._cluster.collectives.gather_array(np.array([goes_on], np.int64))[:, 0]
        if not (choices == choices[0]).all():
            stopped = ", ".join(str(rank) for rank in np.flatnonzero(choices == 0))
            raise DistributedError(
                f"rank {stopped} stopped after {self._epochs} epochs while the others continue. A callback that "
                "stops the training, such as EarlyStopping, must see the same values on every rank. In "
                "fit(callbacks=…), put such a callback after cluster.callbacks(), which averages the values over the "
                "ranks."
            )

    def on_train_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Note where the weights begin: after what others restored."""
        if self._broadcast and not self._noted:
            self._guard.start(self.model.trainable_variables)
            self._noted = True

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Broadcast late, or compare the weights."""
        if not self._broadcast:
            # The first step made the variables, each rank its own.
            self._broadcast = True
            self._broadcast_model()
            return
        self._steps += 1
        if self._steps in STEPS:
            self._compare(self._steps)

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Average what the ranks have each their own of."""
        self._epochs += 1
        self._compare(self._steps)
        self._average_untrained()
        if logs:
            average_logs(self._cluster, logs)

    def _compare(self, step: int) -> None:
        optimizer = getattr(self.model, "optimizer", None)
        self._guard.check(self.model.trainable_variables, step=step, cause=optimizers.why_apart(optimizer))

    def _is_built(self) -> bool:
        return bool(getattr(self.model, "built", True) and self.model.weights)

    def _broadcast_model(self) -> None:
        optimizer = getattr(self.model, "optimizer", None)
        if optimizer is not None:
            keras_compat.build_optimizer(optimizer, self.model.trainable_variables)
        self._cluster.broadcast(self.model)

    def _average_untrained(self) -> None:
        found = [variable for variable in self.model.non_trainable_variables if keras_compat.is_float(variable)]
        if found and self._cluster.size > 1:
            sums = self._cluster.collectives.sum_arrays([keras_compat.value(variable) for variable in found])
            for variable, total in zip(found, sums, strict=True):
                variable.assign((total / self._cluster.size).astype(total.dtype))


def average_logs(cluster: Cluster, logs: Logs) -> None:
    """Replace the values by their means over the ranks.

    Raises:
        DistributedError: the ranks log different things.
    """
    names = sorted(name for name, value in logs.items() if np.ndim(value) == 0)
    values = np.array([float(logs[name]) for name in names], np.float64)
    counts = cluster.collectives.gather_array(np.array([len(names)], np.int64))
    if (counts != len(names)).any():
        raise DistributedError(
            f"the ranks log different metrics; this rank logs: {', '.join(names) or 'none'}. If fit() gets "
            "validation_data, every rank needs a share. callbacks(validation=…) divides validation data among the "
            "ranks."
        )
    if names:
        # A loss has the weights of its batches in it already.
        weights = np.array([1.0 if name.endswith("loss") else cluster.epoch_weight for name in names], np.float64)
        weighted = np.where(weights > 0, values * weights, 0.0)
        sums, totals = cluster.collectives.sum_arrays([weighted, weights])
        logs.update(zip(names, (sums / np.where(totals > 0, totals, 1.0)).tolist(), strict=True))


class WarmUp(Callback):
    """Raises the learning rate from that of one rank to that of all in the first epochs.

    Large steps at the beginning of a training with many ranks can make it diverge (Goyal et al., "Accurate, Large
    Minibatch SGD", 2017).

    Args:
        cluster: The cluster.
        epochs: How long.
    """

    def __init__(self, cluster: Cluster, epochs: float) -> None:
        self._cluster = cluster
        self._epochs = epochs
        self._target = 0.0
        self._epoch = 0
        self._batches: int | None = None
        self._done = self._begun = False

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Find the learning rate to reach."""
        optimizer = self.model.optimizer
        reduction = optimizers.reduction_of(optimizer)
        target = reduction.learning_rate if reduction is not None else keras_compat.learning_rate(optimizer)
        if target is None:
            raise RefusedError(
                "warmup_epochs needs an optimizer with a plain learning rate, but this optimizer has a schedule. Put "
                "the warm-up into the schedule."
            )
        self._target = target
        self._batches = self.params.get("steps")
        self._done = self._begun = False

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """Note the epoch."""
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Set the rate for this batch."""
        if self._done:
            return
        within = batch / self._batches if self._batches else 0.0
        share = (self._epoch + within) / self._epochs
        self._done = share >= 1
        if self._done and not self._begun:
            return  # a training that goes on after its warm-up keeps the rate that it had
        self._begun = True
        keras_compat.set_learning_rate(
            self.model.optimizer, warm_rate(self._target, size=self._cluster.replicas, share=share)
        )

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Count, where the length of an epoch is not known before the first has ended."""
        self._last_batch = batch

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Learn the length of an epoch."""
        self._batches = self._batches or self._last_batch + 1


def warm_rate(target: float, *, size: int, share: float) -> float:
    """Return the learning rate during warm-up: from ``target / size``, linearly, to ``target``. Pure.

    Args:
        target: The rate after it.
        size: The number of ranks.
        share: How much of it is over, from 0 to 1 and beyond.
    """
    begin = target / size
    return begin + (target - begin) * min(1.0, max(0.0, share))


class Validate(Callback):
    """Evaluates after each epoch, over all records exactly once, and adds ``val_…`` to the logs.

    Args:
        evaluate: Gives the metrics of the model.
    """

    batch_hooks = False

    def __init__(self, evaluate: Evaluate) -> None:
        self._evaluate = evaluate

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Evaluate."""
        found = {f"val_{name}": value for name, value in self._evaluate(self.model).items()}
        if logs is not None:
            logs.update(found)


class SignsOfLife(Callback):
    """Tells the job that an evaluation goes on, so that a long one is not taken for a hang."""

    def __init__(self) -> None:
        self._spoke = time.monotonic()

    def on_test_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Count an evaluated batch."""
        now = time.monotonic()
        if now - self._spoke > SIGN_OF_LIFE_S:
            self._spoke = now
            events.emit("progress", batch=batch)

    def _implements_test_batch_hooks(self) -> bool:
        return True


class CountSteps(Callback):
    """Keeps the optimizer's count of its steps right where an epoch's length is not known before.

    Keras finds the end of such an epoch by a step for which there is no record. Nothing is trained in it, but the
    optimizer's counter depends on no record, and TensorFlow has it count: one more for each such end, which schedules
    and Adam's corrections would follow.

    Args:
        counter: Counts the finished steps.
    """

    batch_hooks = False

    def __init__(self, counter: Laps) -> None:
        self._counting = counter
        self._before = 0
        self._counter: Any = None
        self._counted = 0

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """Note where the count is."""
        self._before = self._counting.finished_steps()
        optimizer = getattr(self.model, "optimizer", None)
        # Keras 3's counts the gradients that are accumulated, of which its `iterations` is a part.
        counter = getattr(optimizer, "_iterations", None)
        counter = getattr(optimizer, "iterations", None) if counter is None else counter
        self._counter = counter if hasattr(counter, "assign") else None
        if self._counter is not None:
            self._counted = int(keras_compat.value(self._counter))

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Take back what was counted for no step."""
        if self._counter is None:
            return
        right = self._counted + self._counting.finished_steps() - self._before
        if int(keras_compat.value(self._counter)) == right + 1:
            self._counter.assign(right)


class InjectFaults(Callback):
    """Injects the job's faults at their steps.

    Args:
        cluster: The cluster.
        counter: Counts the finished steps.
    """

    def __init__(self, cluster: Cluster, counter: Laps) -> None:
        self._cluster = cluster
        self._counting = counter

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Inject what is due after the last step, or the last of several that were one execution."""
        self._cluster.faults.reached(self._counting.finished_steps(), rank=self._cluster.rank)


class ProgressCallback(Callback):
    """Reports progress: phases, and what Keras logs at the end of each epoch as metrics.

    Args:
        cluster: The cluster.
        laps: What counts and times the steps; its turn comes before.
        report: Whether to report metrics.
    """

    batch_hooks = False

    def __init__(self, cluster: Cluster, laps: Laps, *, report: bool) -> None:
        self._cluster = cluster
        self._laps = laps
        self._report = report
        self._stepped = self._trained = False
        self._watch: threading.Event | None = None
        self._faults = cluster.faults

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Look for the first step."""
        if self._cluster.coordinates:
            self._watch = threading.Event()
            threading.Thread(target=self._watch_steps, args=(self._watch,), daemon=True).start()

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Report."""
        elapsed_s, batches = self._laps.epoch_s, self._laps.steps
        if batches == 0 and not self._cluster.coordinates:
            raise DistributedError(f"epoch {epoch + 1} had no batches on rank {self._cluster.rank}: {self._why_none()}")
        self._trained = True
        events.emit("progress", epoch=epoch + 1)
        if self._report and self._cluster.is_chief:
            found = {name: value for name, value in (logs or {}).items() if np.ndim(value) == 0}
            if self._cluster.global_batch_size and elapsed_s > 0:
                found["samples_per_second"] = batches * self._cluster.global_batch_size / elapsed_s
            self._cluster.report(epoch=epoch + 1, **found)

    def _why_none(self) -> str:
        if not self._trained:
            return "there are fewer records than one global batch. Use a smaller global_batch_size, or more records."
        # Only with steps_per_epoch does Keras take the next epoch from what the one before has left.
        return (
            "no records were left, because with steps_per_epoch an epoch continues where the previous epoch ended. "
            "Leave steps_per_epoch out, so that each epoch has all records, or use cluster.dataset(…, repeat=True)."
        )

    def on_train_end(self, logs: Logs | None = None) -> None:
        """Report the end."""
        if self._watch is not None:
            self._watch.set()
        self._warn_of_useless_compression()
        events.emit("phase", name="training_ended")

    def _watch_steps(self, ended: threading.Event) -> None:
        """Watch the servers' count of steps: under parameter servers ``fit`` refuses callbacks for batches."""
        iterations = self.model.optimizer.iterations
        with contextlib.suppress(Exception):  # training goes on without these marks
            seen = int(iterations.numpy())
            while not ended.wait(SIGN_OF_LIFE_S if self._stepped and not self._faults.pending else _POLL):
                now = int(iterations.numpy())
                if now == seen:
                    continue
                self._faults.reached(now, rank=self._cluster.rank, coordinates=True)
                if self._stepped:
                    events.emit("progress", steps=now)
                else:
                    self._stepped = True
                    events.emit("phase", name="first_step")
                seen = now

    def _warn_of_useless_compression(self) -> None:
        reduction = optimizers.reduction_of(getattr(self.model, "optimizer", None))
        if reduction is None or reduction.steps is None or not self._cluster.is_chief:
            return
        steps, whole = int(reduction.steps.numpy()), int(reduction.whole_steps.numpy())
        if steps and whole / steps > _USELESS:
            warnings.warn(
                f"compression='fp16': in {whole} of {steps} steps, the range of the gradients was too wide for 16-bit "
                "floats, so they were sent uncompressed. The training would be faster without compression.",
                stacklevel=2,
            )


def callbacks_for(
    cluster: Cluster,
    *,
    checkpointer: Any,
    warmup_epochs: float,
    validate: Evaluate | None,
    report: bool,
) -> list[Any]:
    """Return the callbacks in their order: averaging comes before whatever reads the averages.

    Raises:
        TypeError: the checkpointer is none.
        ValueError: an option out of range.
    """
    if not isinstance(warmup_epochs, int | float) or not 0 <= warmup_epochs < math.inf:
        raise ValueError(f"warmup_epochs must be a number of epochs, at least 0; got {warmup_epochs!r}.")
    if checkpointer is not None and not hasattr(checkpointer, "callback"):
        raise TypeError(f"callbacks(checkpointer=…) takes a Checkpointer, got {checkpointer!r}.")
    saving = None
    if checkpointer is not None:
        checkpointer.cluster = cluster
        saving = checkpointer.callback(data=cluster.training_data)
    laps = Laps(cluster)
    counter = saving if saving is not None else laps
    found: list[Any] = [laps]
    if not cluster.coordinates:
        found.append(CountSteps(counter))
    if cluster.size > 1 and not cluster.coordinates:
        found.append(Synchronize(cluster))
    if warmup_epochs and cluster.replicas > 1 and not cluster.coordinates:
        found.append(WarmUp(cluster, warmup_epochs))
    if validate is not None:
        found.append(Validate(validate))
    found.append(ProgressCallback(cluster, laps, report=report))
    if report and cluster.is_chief and (folder := event_folder()) is not None:
        found.append(Scalars(folder))
    if saving is not None:
        from container.distributed.tensorflow.preemption import SaveInTime

        found.append(saving)
        if not cluster.coordinates:  # with parameter servers there is no batch at which all of the model is known
            found.append(SaveInTime(cluster, saving.request))
    if cluster.faults.pending and not cluster.coordinates:
        found.append(InjectFaults(cluster, counter))
    return found
