"""Define the base class of the callbacks that send the data of jobs to experiment trackers, such as MLflow.

For each job, a thread reads the job's record, sends the data, and stores how much data has been sent. If the tracker
does not respond, the thread tries again, and the job is not delayed. If some data has not been sent when the job ends,
``resume()`` or ``fleetfit track`` sends it later.
"""

from __future__ import annotations

import abc
import contextlib
import fcntl
import hashlib
import importlib.util
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar

from container.contract import rules
from container.contract.frozen import dataclass
from container.contract.names import cut, suggests_arguments
from container.contract.wire import Event
from container.system.files import read_json, write_json
from container.system.locations import path_here
from estimators.client.callbacks import Callback, EventTail, metric_of
from estimators.client.printing import say
from estimators.job.bounds import MAX_SECONDS
from estimators.job.errors import BackendError, ConfigurationError
from estimators.job.request import TrainingJobSpec
from estimators.job.secrets import mask_mapping

if TYPE_CHECKING:
    from estimators.client.training_job import TrainingJob

#: Interval at which new data is sent to a tracker, in seconds.
_EVERY_S = 1.0
#: First and longest pause before the next try after a failure, in seconds.
_RETRY_S = (1.0, 30.0)
#: Maximum length of a parameter's value, in characters.
_VALUE_LIMIT = 500

_RANKS = ("first", "all")


@dataclass(frozen=True)
class TrackedValue:
    """A value of a metric.

    Attributes:
        name: The metric's name. For ranks other than 0, the name has the prefix ``rank_<N>/``.
        value: The value.
        step: The number of earlier values of the metric. In a resumed job, the values of earlier attempts are counted
            too.
        time: The time of the value, in seconds since the epoch.
    """

    name: str
    value: float
    step: int
    time: float


class TrackedRun(abc.ABC):
    """A job's entry in a tracker, which trackers call a run. The methods send data to this entry."""

    #: The id that the tracker has given to the run.
    id: str

    @abc.abstractmethod
    def log(self, points: Sequence[TrackedValue]) -> None:
        """Send values of metrics."""

    @abc.abstractmethod
    def finish(self, status: str, model: Path | None) -> None:
        """Close the run.

        Args:
            status: The job's final status: ``Completed``, ``Failed`` or ``Stopped``.
            model: The path of the job's ``model.tar.gz``. None if the file is not on this machine, or has already been
                sent.
        """


@suggests_arguments
class Tracker(Callback, abc.ABC):
    """A callback that sends a job's parameters, metrics, final status and model to an experiment tracker.

    Args:
        ranks: The ranks whose metrics are sent. ``"first"`` sends the metrics of rank 0 and of processes that are not
            ranks. ``"all"`` also sends the metrics of the other ranks.
        patience: The maximum time that ``fit()`` waits for a slow tracker after the job has ended, in seconds.

    Raises:
        ConfigurationError: an argument is wrong, or the tracker's library is not installed.
    """

    #: The tracker's name, the name of its Python package, and the argument of ``fleetfit install`` that installs it.
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
        """Return a text that identifies where the callback sends runs, such as a server and a project.

        A job has at most one run for each such text.
        """

    @abc.abstractmethod
    def open(self, job: TrainingJob, run: str | None, parent: str | None) -> TrackedRun:
        """Create a job's run, or open an existing run to continue it.

        Args:
            job: The job.
            run: The run's id if the run exists, or None.
            parent: The id of the run under which the job's run is placed, such as the run of a tuning job, or None.
        """

    def open_study(self, name: str, run: str | None) -> str | None:
        """Create a run for a tuning job, under which the runs of its trials are placed, or open the existing run.

        This method of the base class creates no run, and returns None.

        Args:
            name: The tuning job's name.
            run: The run's id if the run exists, or None.

        Returns:
            The run's id, or None if the tracker cannot place runs under other runs.
        """
        return None

    def close_study(self, run: str | None, status: str) -> None:
        """Close the run of a tuning job. This method of the base class does nothing.

        Args:
            run: The run's id.
            status: The final status of the tuning job, such as ``Completed``.
        """

    def on_event(self, job: TrainingJob, event: Event) -> None:
        """Start the thread that sends the job's data if it is not running yet.

        The thread itself reads the events from the record.
        """
        self._feed(job)

    def on_end(self, job: TrainingJob) -> None:
        """Wait until the remaining data has been sent, at most ``patience`` seconds.

        If data remains, print a message.
        """
        feed = self._feed(job)
        if feed.finish(self._patience):
            del self._feeds[job.record.path]
        else:
            problem = f" ({feed.problem})" if feed.problem else ""
            say(
                f"{self.title} has not received all data of training job {job.name}{problem}. To send the rest, run "
                f"`fleetfit track {self.extra} {job.name}`."
            )

    def _feed(self, job: TrainingJob) -> _Feed:
        path = job.record.path
        if path not in self._feeds:
            self._feeds[path] = _Feed(self, job)
        return self._feeds[path]

    def sync(self, job: TrainingJob, parent: str | None = None) -> bool:
        """Send all data of a job that the tracker does not have yet, and wait until it has been sent.

        Args:
            job: The job, which may be running.
            parent: The id of the run that contains the job's run, or None.

        Returns:
            True if the data was sent. False if another process or thread is sending the job's data.

        Raises:
            BackendError: the tracker does not accept the data.
        """
        given_up = self._feeds.pop(job.record.path, None)
        if given_up is not None:
            given_up.finish(None)
        with _locked(state_file(self, job.record.path)) as locked:
            if not locked:
                return False
            try:
                sending = Sending(self, job, parent)
                if not sending.is_done:
                    sending.send(over=job.status.is_terminal)
            except Exception as error:
                raise BackendError(f"{self.title}: {_cause(error)}.") from error
        return True


class Sending:
    """A sender of a job's data to a tracker. It begins with the first data that no earlier sender has sent.

    Args:
        tracker: The tracker.
        job: The job.
        parent: The id of the run that contains the job's run, or None.
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
        """Send new data.

        Args:
            over: Whether the job has ended. If so, the run is closed.
        """
        if self._run is None:
            self._run = self._tracker.open(self._job, self._state["run"], self._parent)
            self._keep(run=self._run.id)
        while events := self._tail.read():
            steps = dict(self._state["steps"])
            points = self._points(events, steps)
            if points:
                self._run.log(points)
            self._keep(offset=self._tail.offset, steps=steps)
        if over:
            model = _model_of(self._job)
            stamp = str(model) if model is not None else None
            self._run.finish(str(self._job.status), model if self._state["model"] != stamp else None)
            self._keep(model=stamp, ended=str(self._job.status))

    @property
    def is_done(self) -> bool:
        """Return whether the job's final status and all its events have been sent.

        The result can become False again, because a resumed job adds more events.
        """
        try:
            size = self._job.record.events_file.stat().st_size
        except FileNotFoundError:
            size = 0
        return self._state.get("ended") == str(self._job.status) and self._tail.offset >= size

    def _keep(self, **values: Any) -> None:
        self._state.update(values)
        self._file.parent.mkdir(mode=0o700, exist_ok=True)
        write_json(self._file, self._state)

    def _points(self, events: Sequence[Event], steps: dict[str, int]) -> list[TrackedValue]:
        """Return the values of metrics in events, and count the values of each metric in ``steps``."""
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
    """A thread that sends a job's data to a tracker while ``fit()`` or ``wait()`` waits for the job."""

    def __init__(self, tracker: Tracker, job: TrainingJob) -> None:
        self._tracker = tracker
        self._job = job
        self._over = threading.Event()
        self._given_up = threading.Event()
        self.problem = ""
        self._thread = threading.Thread(target=self._run, name=f"track-{tracker.extra}", daemon=True)
        self._thread.start()

    def finish(self, patience: float | None) -> bool:
        """Send the remaining data after the job's end.

        Args:
            patience: The maximum time to wait until all data has been sent, in seconds. With None, wait only until the
                current transfer is complete.

        Returns:
            Whether all data was sent.
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
            except Exception as error:  # noqa: BLE001 - no exception of a tracker's library may harm the job
                sending = None
                self.problem = _cause(error)
                if not told:
                    told = True
                    say(f"{self._tracker.title}: {self.problem}. The job goes on, and fleetfit tries again.")
                # If the job ends during the pause, try again at once. Later tries follow after pauses.
                (self._over if not over else self._given_up).wait(pause)
                pause = min(2 * pause, _RETRY_S[1])


def state_file(tracker: Tracker, record: Path) -> Path:
    """Return the path of the file that stores how much data of a job or tuning job has been sent to a tracker.

    Args:
        tracker: The tracker.
        record: The folder of the record.
    """
    place = hashlib.sha256(tracker.place().encode()).hexdigest()[:12]
    return record / "trackers" / f"{tracker.extra}-{place}.json"


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[bool]:
    """Return a context that tries to hold the lock for sending a job's data.

    The context's value is True if the lock was acquired, or False if another process or thread holds the lock.

    Args:
        file: The path from :func:`state_file`. The lock file is beside this file.
    """
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
    """Return a job's hyperparameters as texts, with secrets masked."""
    spec = TrainingJobSpec.from_request(job.record.read_request())
    masked = mask_mapping(spec.user_hyperparameters)
    return {name: cut(value if isinstance(value, str) else repr(value), _VALUE_LIMIT) for name, value in masked.items()}


def facts_of(job: TrainingJob) -> dict[str, str]:
    """Return facts about a job to send to a tracker, such as the strategy and the git commit.

    The hyperparameters are not included.
    """
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
    """Return the path of the job's model, or None if the model is not a file on this machine."""
    data = job.model_data
    path = path_here(data) if data is not None else None
    return path if path is not None and path.is_file() else None


def _cause(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return cut(text, 300).rstrip(".")


def user_folder(text: str | os.PathLike[str]) -> str:
    """Return a folder's absolute path. ``~`` is replaced by the user's home folder."""
    return os.path.abspath(os.path.expanduser(os.fspath(text)))
