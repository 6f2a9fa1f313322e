"""Implement the callbacks of ``cluster.callbacks()``.

The callbacks derive from :class:`container.checkpoint.keras_callback.KerasCallback`, so that both tf_keras and Keras
3 can call them.
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

from container.checkpoint import keras_compat
from container.checkpoint.keras_callback import KerasCallback, Logs
from container.checkpoint.keras_compat import Keras
from container.contract import events
from container.contract.errors import DistributedError, RefusedError
from container.contract.events import SIGN_OF_LIFE_S
from container.contract.strategies import CollectiveAllReduce
from container.distributed.core.weight_check import STEPS, Guard
from container.distributed.tensorflow import optimizers
from container.distributed.tensorflow.measuring import Laps
from container.distributed.tensorflow.tensorboard import Scalars, event_folder

if TYPE_CHECKING:
    from container.distributed.tensorflow.cluster import Cluster

#: A function that returns the metrics of a model.
Evaluate = Callable[[Any], Mapping[str, float]]
#: How often the chief of parameter servers checks for the first step, in seconds.
_POLL = 0.02
#: If fp16 compression was impossible in more than this share of the steps, a warning is printed.
_USELESS = 0.5


class Synchronize(KerasCallback):
    """A callback that sends rank 0's weights to all ranks of a synchronous strategy, and checks that the weights remain
    equal.

    At the end of each epoch, weights that are not trained, such as the moving averages of batch normalization, are
    replaced with their means over the ranks. The values that Keras logs are also replaced with their means.

    Args:
        cluster: The cluster.

    Attributes:
        watches_the_end: Whether to check that no rank stops the training alone. False if rank 0 decides for all ranks.
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
        """Store the model, and check that the model can be trained by several ranks. If XLA is enabled for a model of
        Keras 3, turn off XLA and print a warning.

        Raises:
            RefusedError: the model's optimizer, ``steps_per_execution`` or ``jit_compile`` does not work with several
                ranks.
        """
        super().set_model(model)
        keras_compat.require_tensorflow_backend()
        optimizer = getattr(model, "optimizer", None)
        if optimizers.is_inside_loss_scaling(optimizer):
            # A rank whose gradients overflow would skip the reduction, for which the other ranks wait.
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
            # Each call of a tf.function gives its collective operations new keys, but Keras 3 calls the step's function
            # within a loop of the graph, where the keys would stay the same.
            raise RefusedError(
                f"steps_per_execution={model.steps_per_execution} is not supported here: Keras 3 runs the steps in a "
                "loop, and TensorFlow's collective operations cannot run in this loop. Compile with "
                "steps_per_execution=1, or use tf_keras or Horovod."
            )
        if keras_compat.keras_of(model) is Keras.THREE and getattr(model, "jit_compile", False):
            # If there is a GPU, Keras chooses XLA by itself.
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
        """Send rank 0's model to all ranks if the model already has variables."""
        self._steps = self._epochs = 0
        self._noted = False
        self._broadcast = bool(getattr(self.model, "built", True) and self.model.weights)
        if self._broadcast:
            self._broadcast_model()

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """Check that all ranks begin this epoch. The check is omitted before the first epoch."""
        if self._epochs and self.watches_the_end:
            self._agree(goes_on=True)

    def on_train_end(self, logs: Logs | None = None) -> None:
        """Check that all ranks end the training after the same epoch."""
        if self._epochs and self.watches_the_end:
            self._agree(goes_on=False)

    def _agree(self, *, goes_on: bool) -> None:
        """Check that all ranks make the same decision: to continue the training or to stop it.

        If one rank stopped alone, the other ranks would wait for that rank forever in the next step.

        Args:
            goes_on: Whether this rank continues the training.

        Raises:
            DistributedError: some ranks stop, and the other ranks continue.
        """
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
        """Record the initial weights at the first batch. By then, other callbacks have restored a checkpoint."""
        if self._broadcast and not self._noted:
            self._guard.start(self.model.trainable_variables)
            self._noted = True

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Compare the ranks' weights after certain steps.

        If the first step has created the model's variables, send rank 0's model to all ranks after this step.
        """
        if not self._broadcast:
            # The first step created the variables, on each rank separately.
            self._broadcast = True
            self._broadcast_model()
            return
        self._steps += 1
        if self._steps in STEPS:
            self._compare(self._steps)

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Compare the ranks' weights. Replace each value that the ranks have computed separately with its mean over the
        ranks.
        """
        self._epochs += 1
        self._compare(self._steps)
        self._average_untrained()
        if logs:
            average_logs(self._cluster, logs)

    def _compare(self, step: int) -> None:
        optimizer = getattr(self.model, "optimizer", None)
        self._guard.check(self.model.trainable_variables, step=step, cause=optimizers.why_apart(optimizer))

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
    """Replace each scalar in ``logs`` with its mean over the ranks. For metrics other than losses, the ranks are
    weighted by :attr:`Cluster.epoch_weight`.

    Raises:
        DistributedError: the ranks log different metrics.
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
        # A loss already includes the weights of its batches.
        weights = np.array([1.0 if name.endswith("loss") else cluster.epoch_weight for name in names], np.float64)
        weighted = np.where(weights > 0, values * weights, 0.0)
        sums, totals = cluster.collectives.sum_arrays([weighted, weights])
        logs.update(zip(names, (sums / np.where(totals > 0, totals, 1.0)).tolist(), strict=True))


class WarmUp(KerasCallback):
    """A callback that raises the learning rate, in the first epochs, from the rate for one rank to the rate for all
    ranks.

    If a training with many ranks begins with a high learning rate, the training can diverge (Goyal et al., "Accurate,
    Large Minibatch SGD", 2017).

    Args:
        cluster: The cluster.
        epochs: The duration of the warm-up in epochs.
    """

    def __init__(self, cluster: Cluster, epochs: float) -> None:
        self._cluster = cluster
        self._epochs = epochs
        self._target = 0.0
        self._epoch = 0
        self._batches: int | None = None
        self._done = self._begun = False

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Determine the learning rate that the warm-up must reach."""
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
        """Record the number of the epoch."""
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Set the learning rate for this batch. After the warm-up, do nothing."""
        if self._done:
            return
        within = batch / self._batches if self._batches else 0.0
        share = (self._epoch + within) / self._epochs
        self._done = share >= 1
        if self._done and not self._begun:
            return  # a training that resumes after its warm-up keeps its learning rate
        self._begun = True
        keras_compat.set_learning_rate(
            self.model.optimizer, warm_rate(self._target, size=self._cluster.replicas, share=share)
        )

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Record the number of the batch. If the length of an epoch is unknown, :meth:`on_epoch_end` derives the length
        from the number of the last batch.
        """
        self._last_batch = batch

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Determine the length of an epoch if the length was unknown."""
        self._batches = self._batches or self._last_batch + 1


def warm_rate(target: float, *, size: int, share: float) -> float:
    """Return the learning rate during the warm-up. The rate rises linearly from ``target / size`` to ``target``. Pure.

    Args:
        target: The learning rate after the warm-up.
        size: Number of ranks.
        share: The finished fraction of the warm-up. The fraction is 0 at the beginning, 1 at the end, and more than 1
            after the end.
    """
    begin = target / size
    return begin + (target - begin) * min(1.0, max(0.0, share))


class Validate(KerasCallback):
    """A callback that evaluates the model after each epoch, and adds the metrics to the logs under the names ``val_…``.
    The evaluation counts each record exactly once.

    Args:
        evaluate: Evaluates a model, and returns its metrics.
    """

    batch_hooks = False

    def __init__(self, evaluate: Evaluate) -> None:
        self._evaluate = evaluate

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Evaluate the model, and add the metrics to the logs."""
        found = {f"val_{name}": value for name, value in self._evaluate(self.model).items()}
        if logs is not None:
            logs.update(found)


class SignsOfLife(KerasCallback):
    """A callback that reports the progress of an evaluation, so that the job does not regard a long evaluation as a
    hang.
    """

    def __init__(self) -> None:
        self._spoke = time.monotonic()

    def on_test_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Report progress if enough time has passed since the last report."""
        now = time.monotonic()
        if now - self._spoke > SIGN_OF_LIFE_S:
            self._spoke = now
            events.emit("progress", batch=batch)

    def _implements_test_batch_hooks(self) -> bool:
        return True


class CountSteps(KerasCallback):
    """A callback that corrects the optimizer's counter of steps if the length of an epoch is not known in advance.

    Keras detects the end of such an epoch by an additional step without any records. This step trains nothing. But
    TensorFlow still increases the optimizer's counter, because the increase does not depend on the records. Without a
    correction, learning-rate schedules and Adam's bias correction would use the wrong number of steps.

    Args:
        counter: The counter of the finished steps.
    """

    batch_hooks = False

    def __init__(self, counter: Laps) -> None:
        self._counting = counter
        self._before = 0
        self._counter: Any = None
        self._counted = 0

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """Record the value of the optimizer's counter at the beginning of the epoch."""
        self._before = self._counting.finished_steps()
        optimizer = getattr(self.model, "optimizer", None)
        # In Keras 3, `_iterations` counts the accumulated gradients; `iterations` is derived from it.
        counter = getattr(optimizer, "_iterations", None)
        counter = getattr(optimizer, "iterations", None) if counter is None else counter
        self._counter = counter if hasattr(counter, "assign") else None
        if self._counter is not None:
            self._counted = int(keras_compat.value(self._counter))

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Subtract 1 from the optimizer's counter if the epoch had a step that trained nothing."""
        if self._counter is None:
            return
        right = self._counted + self._counting.finished_steps() - self._before
        if int(keras_compat.value(self._counter)) == right + 1:
            self._counter.assign(right)


class InjectFaults(KerasCallback):
    """A callback that injects the job's faults into this rank at the specified steps.

    Args:
        cluster: The cluster.
        counter: The counter of the finished steps.
    """

    def __init__(self, cluster: Cluster, counter: Laps) -> None:
        self._cluster = cluster
        self._counting = counter

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Inject the faults that are due. Keras may have executed several steps since the last call."""
        self._cluster.faults.reached(self._counting.finished_steps(), rank=self._cluster.rank)


class ProgressCallback(KerasCallback):
    """A callback that reports the phases of the training to the job. The callback also reports, as metrics, the values
    that Keras logs at the end of each epoch.

    Args:
        cluster: The cluster.
        laps: The callback that counts the steps and measures their durations. The callback ``laps`` must precede this
            callback in the list.
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
        """Start a thread that watches the number of finished steps, if this is the chief of parameter servers."""
        if self._cluster.coordinates:
            self._watch = threading.Event()
            threading.Thread(target=self._watch_steps, args=(self._watch,), daemon=True).start()

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Report the end of the epoch. On the chief, also report the epoch's metrics if ``report`` is set.

        Raises:
            DistributedError: the epoch had no batches.
        """
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
        # With steps_per_epoch, Keras starts an epoch with the records that the previous epoch has not used. Without
        # steps_per_epoch, each epoch starts with all records.
        return (
            "no records were left, because with steps_per_epoch an epoch continues where the previous epoch ended. "
            "Leave steps_per_epoch out, so that each epoch has all records, or use cluster.dataset(…, repeat=True)."
        )

    def on_train_end(self, logs: Logs | None = None) -> None:
        """Report that the training has ended. Print a warning if compression was impossible in most steps."""
        if self._watch is not None:
            self._watch.set()
        self._warn_of_useless_compression()
        events.emit("phase", name="training_ended")

    def _watch_steps(self, ended: threading.Event) -> None:
        """Watch the number of steps on the parameter servers until ``ended`` is set. When the number increases, report
        progress and inject the faults that are due.

        A thread watches this number because, with parameter servers, ``fit`` does not accept callbacks for batches.
        """
        iterations = self.model.optimizer.iterations
        with contextlib.suppress(Exception):  # an error here must not stop the training
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
    """Return the callbacks in the order in which Keras must call them. The callback that averages the logs over the
    ranks precedes the callbacks that read the logs.

    Args:
        cluster: The cluster.
        checkpointer: The argument of :meth:`Cluster.callbacks`.
        warmup_epochs: The argument of :meth:`Cluster.callbacks`.
        validate: A function that returns the metrics of a model, to evaluate the model after each epoch. None for no
            evaluation.
        report: Whether to report and write the values that Keras logs for each epoch.

    Raises:
        TypeError: ``checkpointer`` is not a Checkpointer.
        ValueError: an option is out of range.
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
        # with parameter servers, there is no batch at which the state of the whole model is known
        if not cluster.coordinates:
            found.append(SaveInTime(cluster, saving.request))
    if cluster.faults.pending and not cluster.coordinates:
        found.append(InjectFaults(cluster, counter))
    return found
