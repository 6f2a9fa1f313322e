"""Send a tuning job to an experiment tracker. The tuning job becomes a run, and each trial becomes a nested run."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from container.system.files import read_json, write_json
from estimators.client.printing import say
from estimators.client.trackers.base import state_file
from estimators.client.training_job import TrainingJob
from estimators.job.errors import BackendError, FleetfitError, JobNotFoundError
from estimators.records.record import JobRecord
from estimators.tuning.record import is_terminal

if TYPE_CHECKING:
    from estimators.client.trackers.base import Tracker
    from estimators.tuning.record import TuningRecord

#: The interval at which new data is sent, in seconds.
_EVERY_S = 5.0


def sync(record: TuningRecord, tracker: Tracker) -> None:
    """Send the new data about a tuning job and its trials to a tracker. Data that the tracker already has is not sent
    again.

    Args:
        record: The tuning job's record.
        tracker: The tracker.

    Raises:
        BackendError: the tracker returns an error.
    """
    file = state_file(tracker, record.path)
    state = read_json(file)
    status = record.status()
    over = is_terminal(status)
    if over and state.get("ended"):
        return
    try:
        run = tracker.open_study(record.name, state.get("run"))
    except Exception as error:
        raise BackendError(f"{tracker.title}: {error}") from error
    file.parent.mkdir(mode=0o700, exist_ok=True)
    write_json(file, {"run": run})
    for row in record.trials():
        with contextlib.suppress(JobNotFoundError):  # the trial's job has not been created yet
            tracker.sync(TrainingJob(JobRecord.open(row["job"], record.home)), parent=run)
    if over:
        try:
            tracker.close_study(run, str(status.get("HyperParameterTuningJobStatus")))
        except Exception as error:
            raise BackendError(f"{tracker.title}: {error}") from error
        write_json(file, {"run": run, "ended": True})


class Following:
    """A background thread that sends a tuning job to trackers while the caller waits for the tuning job.

    Because of the thread, an unreachable tracker does not delay the caller.

    Args:
        record: The tuning job's record.
        trackers: The trackers.
    """

    def __init__(self, record: TuningRecord, trackers: list[Tracker]) -> None:
        self._record = record
        self._trackers = trackers
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._run, name="track-study", daemon=True)
        self._thread.start()

    def finish(self, patience: float) -> None:
        """Send the remaining data, and end the thread. Wait for at most ``patience`` seconds."""
        self._left.set()
        self._thread.join(patience)

    def _run(self) -> None:
        while not self._left.wait(_EVERY_S):
            self._sync(tell=False)
        self._sync(tell=True)

    def _sync(self, *, tell: bool) -> None:
        for tracker in self._trackers:
            try:
                sync(self._record, tracker)
            except FleetfitError as error:
                if tell:
                    name = self._record.name
                    say(f"{error} Run `fleetfit track {tracker.extra} {name}` to send the rest.")
