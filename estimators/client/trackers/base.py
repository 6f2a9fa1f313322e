"""What every tracker's callback shares: a thread that sends what is on a job's record, and remembers how far it is.

The record is the queue. A tracker that does not answer holds up nothing: its thread tries again, and what it has not
taken by the end is sent by the next who tracks the job: ``resume()``, or ``fleetfit track``.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import fcntl
import hashlib
import importlib.util
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar

from container.contract import rules
from container.contract.names import cut
from container.contract.wire import Event
from container.system.files import read_json, write_json
from container.system.locations import path_here
from estimators.client.callbacks import Callback, EventTail, metric_of
from estimators.client.printing import write_text
from estimators.job.bounds import MAX_SECONDS
from estimators.job.errors import BackendError, ConfigurationError
from estimators.job.request import TrainingJobSpec
from estimators.job.secrets import mask_mapping

if TYPE_CHECKING:
    from estimators.client.training_job import TrainingJob

#: How often what is new is sent, in seconds.
_EVERY_S = 1.0
#: After a failure it is tried again after so many seconds at first, and at most.
_RETRY_S = (1.0, 30.0)
#: How much of a parameter's value is sent, in characters.
_VALUE_LIMIT = 500

_RANKS = ("first", "all")


@dataclasses.dataclass(frozen=True)
class TrackedValue:
    """A metric's value, as trackers take it.

    Attributes:
        name: The metric; of another rank than 0, with ``rank_<N>/`` before it.
        value: The value.
        step: Which value of the metric it is, from 0; in a job that was resumed, counting goes on.
        time: Seconds since the epoch.
    """

    name: str
    value: float
    step: int
    time: float


class TrackedRun(abc.ABC):
    """A job's run at a tracker, which is open."""

    #: What the tracker calls it.
    id: str

    @abc.abstractmethod
    def log(self, points: Sequence[TrackedValue]) -> None:
        """Send values."""

    @abc.abstractmethod
    def finish(self, status: str, model: Path | None) -> None:
        """Close the run.

        Args:
            status: ``Completed``, ``Failed`` or ``Stopped``.
            model: The job's ``model.tar.gz``, where it is on this machine, and the run does not have it.
        """


class Tracker(Callback, abc.ABC):
    """Sends a job's parameters, metrics, end and model to an experiment tracker.

    Args:
        ranks: Whose metrics to send. ``"first"``: those of rank 0, and of processes that are not ranks; ``"all"``: also
            those of the other ranks.
        patience: How many seconds ``fit()`` may wait at its end for a slow tracker.

    Raises:
        ConfigurationError: an argument is wrong, or the tracker's library is missing.
    """

    #: What the tracker is called, and its library, and the extra that brings it.
    title: ClassVar[str]
    library: ClassVar[str]
    extra: ClassVar[str]

    def __init__(self, *, ranks: str = "first", patience: float = 30.0) -> None:
        kind = type(self).__name__
        rules.one_of(*_RANKS)(f"{kind}(ranks=…)", ranks)
        rules.seconds(0, MAX_SECONDS)(f"{kind}(patience=…)", patience)
        if importlib.util.find_spec(self.library) is None:
            raise ConfigurationError(f"{kind} needs {self.title}'s library: `fleetfit install {self.extra}`.")
        self._all_ranks = ranks == "all"
        self._patience = patience
        self._feeds: dict[Path, _Feed] = {}

    @abc.abstractmethod
    def place(self) -> str:
        """Return where runs go; each place has a run of its own of a job."""

    @abc.abstractmethod
    def open(self, job: TrainingJob, run: str | None, parent: str | None) -> TrackedRun:
        """Begin a job's run, or go on with it.

        Args:
            job: The job.
            run: The run's id, if there is one.
            parent: The id of the run that this one is part of, as a trial is of its study.
        """

    def open_study(self, name: str, run: str | None) -> str | None:
        """Begin the run that a tuning job's trials belong to; returns its id, or None where there is no such thing."""
        return None

    def close_study(self, run: str | None, status: str) -> None:
        """Close the run that a tuning job's trials belong to; its status is SageMaker's."""

    def on_event(self, job: TrainingJob, event: Event) -> None:
        """Have what is new sent."""
        self._feed(job)

    def on_end(self, job: TrainingJob) -> None:
        """Send the rest, as far as the tracker takes it in its time."""
        feed = self._feed(job)
        if feed.finish(self._patience):
            del self._feeds[job.record.path]
        else:
            problem = f" ({feed.problem})" if feed.problem else ""
            _say(
                f"{self.title} has not received all data of training job {job.name}{problem}. To send the rest, run "
                f"`fleetfit track {self.extra} {job.name}`."
            )

    def _feed(self, job: TrainingJob) -> _Feed:
        path = job.record.path
        if path not in self._feeds:
            self._feeds[path] = _Feed(self, job)
        return self._feeds[path]

    def sync(self, job: TrainingJob, parent: str | None = None) -> bool:
        """Send what a tracker does not have yet of a job, and return.

        Args:
            job: The job; it may run.
            parent: The id of the run that its run is part of.

        Returns:
            Whether it was done; False where another process is sending it.

        Raises:
            BackendError: the tracker does not take it.
        """
        given_up = self._feeds.pop(job.record.path, None)
        if given_up is not None:
            given_up.finish(None)
        with contextlib.ExitStack() as stack:
            if not stack.enter_context(_locked(state_file(self, job.record.path))):
                return False
            try:
                sending = Sending(self, job, parent)
                if not sending.is_done:
                    sending.send(over=job.status.is_terminal)
            except Exception as error:
                raise BackendError(f"{self.title}: {_cause(error)}.") from error
        return True


class Sending:
    """Sends a job's record on from where the last one ended.

    Args:
        tracker: The tracker.
        job: The job.
        parent: The id of the run that its run is part of.
    """

    def __init__(self, tracker: Tracker, job: TrainingJob, parent: str | None = None) -> None:
        self._tracker = tracker
        self._job = job
        self._parent = parent
        self._file = state_file(tracker, job.record.path)
        self._state: dict[str, Any] = {"run": None, "offset": 0, "steps": {}, "model": None, **read_json(self._file)}
        self._tail = EventTail(job.record, int(self._state["offset"]))
        self._run: TrackedRun | None = None

    def send(self, *, over: bool) -> None:
        """Send what is new.

        Args:
            over: Whether the job is over: then the run is closed.
        """
        self._open()
        while events := self._tail.read():
            try:
                points = self._points(events)
                if points:
                    self._opened().log(points)
            except BaseException:
                self._tail.offset = int(self._state["offset"])  # they are sent again
                raise
            steps = dict(self._state["steps"])
            for point in points:
                steps[point.name] = point.step + 1
            self._keep(offset=self._tail.offset, steps=steps)
        if over:
            model = _model_of(self._job)
            stamp = str(model) if model is not None else None
            self._opened().finish(str(self._job.status), model if self._state["model"] != stamp else None)
            self._run = None
            self._keep(model=stamp, ended=str(self._job.status))

    @property
    def is_done(self) -> bool:
        """Whether the tracker knows of the end, and there is nothing after it: a resumed job goes on."""
        try:
            size = self._job.record.events_file.stat().st_size
        except FileNotFoundError:
            size = 0
        return self._state.get("ended") == str(self._job.status) and self._tail.offset >= size

    def _open(self) -> None:
        if self._run is None:
            self._run = self._tracker.open(self._job, self._state["run"], self._parent)
            self._keep(run=self._run.id)

    def _opened(self) -> TrackedRun:
        self._open()
        assert self._run is not None
        return self._run

    def _keep(self, **values: Any) -> None:
        self._state.update(values)
        self._file.parent.mkdir(mode=0o700, exist_ok=True)
        write_json(self._file, self._state)

    def _points(self, events: Sequence[Event]) -> list[TrackedValue]:
        steps = dict(self._state["steps"])
        points = []
        for event in events:
            metric = metric_of(event)
            if metric is None or (metric.rank and not self._tracker._all_ranks):
                continue
            name = f"rank_{metric.rank}/{metric.name}" if metric.rank else metric.name
            step = steps.get(name, 0)
            steps[name] = step + 1
            points.append(TrackedValue(name, metric.value, step, metric.time))
        return points


class _Feed:
    """The thread that sends a job while its caller waits."""

    def __init__(self, tracker: Tracker, job: TrainingJob) -> None:
        self._tracker = tracker
        self._job = job
        self._over = threading.Event()
        self._given_up = threading.Event()
        self.problem = ""
        self._thread = threading.Thread(target=self._run, name=f"track-{tracker.extra}", daemon=True)
        self._thread.start()

    def finish(self, patience: float | None) -> bool:
        """Send the rest, as the job is over.

        Args:
            patience: How long that may take, in seconds; None: until what is being done is done.

        Returns:
            Whether all is sent.
        """
        self._over.set()
        if patience is not None:
            self._thread.join(patience)
        self._given_up.set()
        self._thread.join(0 if patience is not None else None)
        return not self._thread.is_alive() and not self.problem

    def _run(self) -> None:
        with contextlib.ExitStack() as stack:
            try:
                if not stack.enter_context(_locked(state_file(self._tracker, self._job.record.path))):
                    self.problem = "another process is sending the job's data"
                    return
            except OSError as error:
                self.problem = _cause(error)
                return
            self._send()

    def _send(self) -> None:
        pause, told = _RETRY_S[0], False
        sending: Sending | None = None
        while not self._given_up.is_set():
            over = self._over.is_set()
            try:
                if sending is None:
                    sending = Sending(self._tracker, self._job)
                sending.send(over=over)
                self.problem, pause = "", _RETRY_S[0]
                if over:
                    return
                self._over.wait(_EVERY_S)
            except Exception as error:  # noqa: BLE001 - whatever a library raises harms no job
                sending = None
                self.problem = _cause(error)
                if not told:
                    told = True
                    _say(f"{self._tracker.title}: {self.problem}. The job goes on, and fleetfit tries again.")
                # At the end it is tried once more at once, and then again.
                (self._over if not over else self._given_up).wait(pause)
                pause = min(2 * pause, _RETRY_S[1])


def state_file(tracker: Tracker, record: Path) -> Path:
    """Return where it is kept how far a tracker has been told of a job, or of a tuning job.

    Args:
        tracker: The tracker.
        record: The folder of the record.
    """
    place = hashlib.sha256(tracker.place().encode()).hexdigest()[:12]
    return record / "trackers" / f"{tracker.extra}-{place}.json"


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[bool]:
    """Have no other process send the same; yields whether none does."""
    file.parent.mkdir(mode=0o700, exist_ok=True)
    lock: IO[str]
    with open(file.with_suffix(".lock"), "a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def parameters_of(job: TrainingJob) -> dict[str, str]:
    """Return a job's hyperparameters as texts, secrets masked."""
    spec = TrainingJobSpec.from_request(job.record.read_request())
    masked = mask_mapping(spec.user_hyperparameters)
    return {name: cut(value if isinstance(value, str) else repr(value), _VALUE_LIMIT) for name, value in masked.items()}


def facts_of(job: TrainingJob) -> dict[str, str]:
    """Return what a tracker should know of a job beside its parameters."""
    from estimators.records.provenance import read

    spec = TrainingJobSpec.from_request(job.record.read_request())
    provenance = read(job.record.path)
    git = provenance.get("git") or {}
    found = {
        "job": job.name,
        "strategy": spec.strategy.name if spec.strategy is not None else "none",
        "instance_type": spec.instance_type,
        "hosts": str(spec.instance_count),
        "entry_point": spec.program,
        "git_commit": git.get("commit"),
        "user": (provenance.get("caller") or {}).get("user"),
    }
    return {name: str(value) for name, value in found.items() if value}


def _model_of(job: TrainingJob) -> Path | None:
    """Return the job's model where it is a file of this machine."""
    data = job.model_data
    path = path_here(data) if data is not None else None
    return path if path is not None and path.is_file() else None


def _cause(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return cut(text, 300).rstrip(".")


def _say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        write_text(sys.stderr, f"fleetfit: {text}\n")


def user_folder(text: str | os.PathLike[str]) -> str:
    """Return a folder's absolute path."""
    return os.path.abspath(os.path.expanduser(os.fspath(text)))
