"""Describe the progress of a job in short texts, for the status line of a terminal and the pane of a notebook."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from container.contract import hyperparameters as codec
from container.contract.frozen import dataclass
from estimators.client.callbacks import metric_of
from estimators.records.states import MESSAGES, SecondaryStatus
from estimators.results.summary import number_text, seconds_text

if TYPE_CHECKING:
    from container.contract.wire import Event
    from estimators.client.training_job import TrainingJob

_STATUSES: dict[str, str] = {
    SecondaryStatus.STARTING: "launching",
    SecondaryStatus.PENDING: "waiting for hosts",
    SecondaryStatus.DOWNLOADING_TRAINING_IMAGE: "pulling the image",
    SecondaryStatus.DOWNLOADING: "preparing the data",
    SecondaryStatus.UPDATING: "resizing the cluster",
    SecondaryStatus.INTERRUPTED: "interrupted",
    SecondaryStatus.RESTARTING: "restarting",
    SecondaryStatus.UPLOADING: "saving the outputs",
    SecondaryStatus.STOPPING: "stopping",
}
#: Statuses that are shown with the status message, because the message says what the job waits for.
_WAITING = (SecondaryStatus.PENDING, SecondaryStatus.DOWNLOADING_TRAINING_IMAGE)
_PHASES = {
    "installing": "installing the requirements",
    "ranks_started": "importing", "imported": "connecting", "rendezvous": "preparing the first step",
    "first_step": "training", "training_ended": "finishing", "ranks_ended": "finishing",
}  # fmt: skip
#: Phases after which the stage becomes `running` when the script prints a line, even if it reports no other phase.
_QUIET = ("", "installing", "ranks_started", "rendezvous")
#: Names of hyperparameters whose value is the total number of epochs or steps.
_TOTALS = {
    "epoch": ("epochs", "num-epochs", "num_epochs", "num_train_epochs"),
    "step": ("steps", "max-steps", "max_steps", "num-steps", "num_steps", "train_steps"),
}
#: Number of values in the plot of the loss, and maximum number of metrics in the text.
_CURVE, _SHOWN = 240, 4
#: Number of recent epochs or steps whose average duration is used to estimate the remaining time.
_RECENT = 5


#: Matches the number of an epoch, and the loss, in a line that a script prints.
_EPOCH = re.compile(r"\bepoch[ :=]*\[?(\d{1,9}) ?(?:/|of) ?(\d{1,9})\b", re.IGNORECASE)
_LOSS = re.compile(
    r"(?<!\bval )(?<!\bvalid )(?<!\bvalidation )(?<!\btest )(?<!\beval )(?<![\w-])"
    r"loss[ :=]+(-?\d+(?:\.\d+)?(?:e[-+]?\d+)?)", re.IGNORECASE,
)  # fmt: skip


@dataclass(frozen=True)
class _Told:
    """An epoch of the training whose number the script has printed. Times are Unix times in seconds.

    Attributes:
        epoch: The number of the epoch.
        epochs: The total number of epochs.
        began: The time and the number of the first epoch that was printed.
        time: The time at which this epoch was printed.
        begins: Whether the line was printed at the beginning of the epoch, as Keras does.
    """

    epoch: int
    epochs: int
    began: tuple[float, int]
    time: float
    begins: bool

    def seconds_left(self, now: float) -> float | None:
        """Return the estimated remaining time in seconds, or None if the time is unknown."""
        if self.epoch == self.began[1]:
            return None
        each_s = (self.time - self.began[0]) / (self.epoch - self.began[1])
        return max(0.0, (self.epochs - self.epoch + self.begins) * each_s - (now - self.time))


class JobProgress:
    """The progress of a job.

    Args:
        hyperparameters: The job's hyperparameters.
        began: The start time of the job, in seconds since the epoch.

    Attributes:
        loss: The values of the loss so far, for a plot. If there are more than 480 values, every second value is
            dropped.
        interrupted: A text about the effect of the user's interrupt, or ``""`` without an interrupt.
    """

    def __init__(self, hyperparameters: Mapping[str, Any], began: float) -> None:
        self._began = began
        self._totals = {unit: _total(hyperparameters, names) for unit, names in _TOTALS.items()}
        self._status, self._message = str(SecondaryStatus.STARTING.value), ""
        self._phase = ""
        self._attempt = 0
        self._printed = False
        self._metrics: dict[str, float] = {}
        self._within: dict[str, Any] = {}  # the epoch that has not ended: its number, its last step, and more
        self._epoch_s: float | None = None  # duration of the last epoch
        self._told: _Told | None = None
        self._told_loss: float | None = None
        self._rate: float | None = None  # steps per second in the last epoch
        self._reached: list[tuple[float, float]] = []  # times, and numbers of epochs or steps finished at these times
        self.loss: list[float] = []
        self.interrupted = ""

    @classmethod
    def of(cls, job: TrainingJob) -> JobProgress:
        """Create the progress of a job. The caller passes the job's events to :meth:`take` afterwards."""
        began = float(job._status().get("CreationTime") or time.time())
        return cls(codec.decode(job.record.read_request().get("HyperParameters") or {}), began)

    # --- updates ---

    def take(self, events: Iterable[Event]) -> None:
        """Process new events of the job's record."""
        for event in events:
            with contextlib.suppress(KeyError, TypeError, AttributeError, ValueError, OverflowError):
                self._take(event)  # an event that another program wrote may have any content

    def _take(self, event: Event) -> None:
        self._begin(event.attempt)
        if event.kind == "phase":
            name = str(event.data.get("name"))
            if name == "cluster_ready" and self._phase == "installing":  # an elastic job has no "ranks_started"
                self._phase = ""
            if name == "installing" and self._phase:  # a host that has joined an elastic job
                return
            if name in _PHASES and name != self._phase:
                # An event of the start may be read after the script's first line.
                self._phase, self._printed = name, self._printed and name in _QUIET
        elif event.kind == "steps" and event.rank in (None, 0):
            seconds = event.data.get("seconds") or 0.0
            self._rate = event.data["steps"] / seconds if seconds > 0 else None
            self._within, self._epoch_s = {}, seconds if self._unit == "epoch" else None
            # An elastic training calls Keras for each epoch, so that the number of epochs is the current epoch.
            if self._totals["epoch"] is None and event.data.get("epochs", 0) > event.data["epoch"]:
                self._totals["epoch"] = int(event.data["epochs"])
        elif event.kind == "within_epoch" and event.rank in (None, 0):
            step, seconds = int(event.data["step"]), float(event.data["seconds"])
            within = {"epoch": int(event.data["epoch"]), "step": step, "seconds": seconds, "time": event.time_ns / 1e9}
            for name, kind in (("steps", int), ("loss", float)):
                if event.data.get(name) is not None:
                    within[name] = kind(event.data[name])
            self._within = within
            self._rate = step / seconds if seconds > 0 else self._rate
            if self._totals["epoch"] is None and event.data.get("epochs", 0) > self._within["epoch"]:
                self._totals["epoch"] = int(event.data["epochs"])
        elif (metric := metric_of(event)) is not None and metric.rank in (None, 0):
            self._metrics[metric.name] = metric.value
            if metric.name == self._unit:
                if self._reached and self._reached[-1][1] > metric.value:
                    self._reached = []  # the script has started to count again
                self._reached = [*self._reached[-_RECENT:], (metric.time, metric.value)]
            if metric.name == self._loss_name:
                self._plot(metric.value)

    def _plot(self, loss: float) -> None:
        self.loss.append(loss)
        if len(self.loss) > 2 * _CURVE:
            self.loss = self.loss[::2]

    def _begin(self, attempt: int) -> None:
        if attempt > self._attempt:  # forget the progress of earlier attempts
            self._attempt, self._phase, self._printed, self._reached, self._rate = attempt, "", False, [], None
            self._metrics, self._within, self._epoch_s, self._told, self._told_loss = {}, {}, None, None, None

    def read(self, text: str, time: float) -> None:
        """Read a line that the script has printed, such as ``Epoch 3/40`` or ``loss: 0.25``.

        The values are only used while the script reports no epochs and no loss itself.

        Args:
            text: The line.
            time: The time of the line, in seconds since the epoch.
        """
        if found := _EPOCH.search(text):
            epoch, epochs = int(found[1]), int(found[2])
            begun = self._told.began if self._told is not None and self._told.epoch < epoch else (time, epoch)
            if 0 < epoch <= epochs and (self._told is None or self._told.epoch != epoch):
                self._told = _Told(epoch, epochs, begun, time, begins=found[0] == text.strip())
        if losses := _LOSS.findall(text):
            self._told_loss = float(losses[-1])
            if self._loss_name is None:
                self._plot(self._told_loss)

    def stand(self, secondary_status: str, message: str) -> None:
        """Set the job's secondary status and the status message."""
        self._status, self._message = secondary_status, message

    @property
    def awaits_output(self) -> bool:
        """Return whether the caller must call :meth:`printed` when the script prints its first line."""
        return not self._printed and self._phase in _QUIET

    def printed(self) -> None:
        """Record that the script has printed a line."""
        self._printed = True

    # --- state ---

    @property
    def stage(self) -> str:
        """Return the job's stage, such as ``importing``, ``training`` or ``waiting for hosts: …``."""
        installing = self._status == SecondaryStatus.STARTING and self._phase == "installing"
        if self._status != SecondaryStatus.TRAINING and not installing:
            said = self._message.rstrip(".") if self._status in _WAITING else ""
            if not said or said == MESSAGES[SecondaryStatus(self._status)]:
                return _STATUSES.get(self._status, self._status)
            return f"{_STATUSES[self._status]}: {said}"
        if self._metrics and self._phase in _QUIET:
            return "training"
        if self._printed:
            return "running"
        return _PHASES.get(self._phase, "launching")

    @property
    def _unit(self) -> str:
        """Return the unit of the progress: ``epoch``, or ``step`` if the script reports steps and no epochs."""
        return "step" if "epoch" not in self._metrics and "step" in self._metrics else "epoch"

    @property
    def _loss_name(self) -> str | None:
        named = [name for name in self._metrics if name == "loss" or name.endswith("loss")]
        return "loss" if "loss" in named else named[0] if named else None

    @property
    def _reported(self) -> float | None:
        """Return the number of finished epochs or steps that the script has reported, or None."""
        return self._metrics.get(self._unit)

    @property
    def done(self) -> float | None:
        """Return the number of finished epochs or steps, or None if the number is unknown."""
        if self._reported is None and self._told is not None:
            return self._told.epoch - self._told.begins
        return self._reported

    @property
    def total(self) -> int | None:
        """Return the total number of epochs or steps, or None if the number is unknown."""
        if self._reported is None and self._told is not None:
            return self._told.epochs
        return self._totals[self._unit]

    def _current(self) -> dict[str, Any] | None:
        """Return the last report about the epoch that has not ended, or None if there is no such report."""
        if not self._within or self._unit != "epoch" or self._within["epoch"] <= (self._reported or 0):
            return None
        return self._within

    def seconds_left(self, now: float) -> float | None:
        """Return the estimated remaining time in seconds, or None if the time is unknown.

        Args:
            now: The current time, in seconds since the epoch.
        """
        if self._reported is None and self._current() is None and self._told is not None:
            return self._told.seconds_left(now)
        if self.total is None:
            return None
        if len(self._reached) == 1 and self._current() is None and self._epoch_s and self._reached[0][1] < self.total:
            return max(0.0, (self.total - self._reached[0][1]) * self._epoch_s - (now - self._reached[0][0]))
        if self._reported is None or len(self._reached) < 2:
            within = self._current()
            if within is None or not within["step"] or not within.get("steps"):
                return None
            epoch_s: float = within["seconds"] / within["step"] * within["steps"]
            spent_s: float = within["seconds"] + now - within["time"]
            epochs: int = self.total - within["epoch"] + 1
            return max(0.0, epochs * epoch_s - spent_s)
        (first_s, first), (last_s, last) = self._reached[0], self._reached[-1]
        if last <= first or last >= self.total:
            return None
        each_s = (last_s - first_s) / (last - first)
        return max(0.0, (self.total - last) * each_s - (now - last_s))

    def parts(self, now: float) -> list[str]:
        """Return short texts that describe the progress, such as ``training``, ``epoch 3 of 10`` and ``loss 0.3``.

        The most important text is first.

        Args:
            now: The current time, in seconds since the epoch.
        """
        if self.interrupted:
            return [self.interrupted]
        found, others, rate = [self.stage], [], ""
        if self._status == SecondaryStatus.TRAINING:
            within = self._current()
            done = within["epoch"] if within is not None else self._reported
            if done is not None:
                found.append(f"{self._unit} {done:,.0f}{_of(self.total)}")
            elif self._told is not None:
                found.append(f"epoch {self._told.epoch:,}{_of(self._told.epochs)}")
            if within is not None:
                found.append(f"step {within['step']:,}{_of(within.get('steps'))}")
            names = [name for name in self._metrics if name not in _TOTALS and not name.endswith("_per_second")]
            names.sort(key=lambda name: name != self._loss_name)
            others = [f"{name} {number_text(self._metrics[name])}" for name in names[:_SHOWN]]
            if within is not None and "loss" in within and self._loss_name in (None, "loss"):
                found.append(f"loss {number_text(within['loss'])}")
                others = others[self._loss_name is not None :]
            elif self._loss_name is not None:
                found.append(others.pop(0))
            elif self._told_loss is not None:
                found.append(f"loss {number_text(self._told_loss)}")
            if (left := self.seconds_left(now)) is not None and left >= 0.5:
                found.append(f"about {_whole_seconds(left)} to go")
            rate = f"{number_text(self._rate)} steps/s" if self._rate else ""
        if rate:
            found.append(rate)
        found.append(_whole_seconds(max(0.0, now - self._began)))
        return found + others


def _of(total: int | None) -> str:
    return f" of {total:,}" if total else ""


def _whole_seconds(seconds: float) -> str:
    """Return a duration as text. The duration is rounded, so that the text changes at most once a second."""
    return f"{seconds:.0f} s" if seconds < 99.5 else seconds_text(round(seconds))


def _total(hyperparameters: Mapping[str, Any], names: Iterable[str]) -> int | None:
    found = (hyperparameters.get(name) for name in names)
    numbers = (one for one in found if isinstance(one, int | float) and not isinstance(one, bool))
    return next((int(one) for one in numbers if 0 < one < 1e15 and one == int(one)), None)
