"""Start a limited number of jobs at once, and find the jobs again when the endpoint is restarted.

Running jobs are separate processes, which do not depend on the queue. A waiting job has a record, too, which contains a
file ``queued``. Therefore no job is lost if the endpoint is killed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping

from container.contract.failures import Cause, Failure
from estimators.client import launch
from estimators.job.errors import BackendError, RecordError
from estimators.records import status as statuses
from estimators.records.record import JobRecord
from estimators.records.states import SecondaryStatus
from estimators.service.records import Jobs

_log = logging.getLogger(__name__)

#: Seconds between two checks whether jobs have ended.
_PACE = 0.1

Tell = Callable[[str], None]


@dataclasses.dataclass
class _Waiting:
    """A waiting job.

    Attributes:
        record: The job's record.
        since: The time of the job's arrival, in seconds since the epoch.
        until: The time at which the job's MaxWaitTimeInSeconds ends, in seconds since the epoch. None if the job has no
            such limit.
    """

    record: JobRecord
    since: float
    until: float | None


class EndpointQueue:
    """The queue of an endpoint's jobs.

    Args:
        jobs: The jobs on record.
        limit: The maximum number of jobs that run at once.
        environment: The environment variables of the jobs' hosts and supervisors. A supervisor is the process that runs
            a job.
        tell: A function that displays a line about an event.
    """

    def __init__(self, jobs: Jobs, limit: int, environment: Mapping[str, str], tell: Tell) -> None:
        self._jobs = jobs
        self._limit = limit
        self._environment = dict(environment)
        self._tell = tell
        self._lock = threading.RLock()
        self._waiting: list[_Waiting] = []
        self._running: dict[str, JobRecord] = {}
        self._processes: list[subprocess.Popen[bytes]] = []
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="queue", daemon=True)

    def start(self) -> None:
        """Restore the jobs of an earlier endpoint, and start the queue."""
        with self._lock:
            for job in self._jobs.all():
                record = job.record
                if record.queued_file.exists():
                    began = (job.status.get(statuses.OWN) or {}).get("supervisor_pid") is not None
                    if job.over or record.is_supervised() or began:
                        # the earlier endpoint started the job just before its end
                        record.queued_file.unlink(missing_ok=True)
                    else:
                        self._waiting.append(_waiting(record, job.created, job.request))
                if not job.over and job.own and record.is_supervised():
                    self._running[record.name] = record
            self._waiting.sort(key=lambda item: item.since)
            if self._running or self._waiting:
                running, waiting = len(self._running), len(self._waiting)
                self._tell(f"jobs of the previous endpoint: {running} running, {waiting} waiting.")
            self._fill()
        self._thread.start()

    def close(self) -> None:
        """Stop starting jobs. Running jobs continue. Waiting jobs are started by the next endpoint."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def running(self) -> int:
        """Return how many of the endpoint's jobs are running."""
        with self._lock:
            return len(self._running)

    def submit(self, record: JobRecord, name: str, request: Mapping[str, object]) -> None:
        """Add a job, and start it as soon as the limit permits.

        Args:
            record: The job's record, which is filled but not yet published. The lock of the record must be held. The
                queue releases the lock.
            name: The job's name.
            request: The client's request.

        Raises:
            JobExistsError: another job has the same name.
            RecordError: the record cannot be written.
        """
        with self._lock:
            os.close(os.open(record.queued_file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
            room = len(self._running) < self._limit and not self._waiting
            if not room:
                self._pend(record)
            record.publish(name)
            if room:
                self._start(record)
                return
            record.release()
            self._waiting.append(_waiting(record, time.time(), request))
            self._tell(f"{record.name} waits: {len(self._running)} jobs are running, and the limit is {self._limit}.")

    def withdraw(self, name: str) -> bool:
        """Stop a job that is still waiting. Return True if the job was waiting, and otherwise False."""
        with self._lock:
            found = next((item for item in self._waiting if item.record.name == name), None)
            if found is None:
                return False
            self._end(found.record, SecondaryStatus.STOPPED, "Stopped before it was started.")
            self._waiting.remove(found)
            return True

    # --- inside ---

    def _watch(self) -> None:
        failing = False
        while not self._closed.wait(_PACE):
            try:
                with self._lock:
                    self._look()
                failing = False
            except Exception:  # noqa: BLE001 - errors of one job, or a full disk, must not stop the queue
                if not failing:
                    _log.exception("an unexpected error in the queue; the queue continues")
                failing = True

    def _look(self) -> None:
        """Remove jobs that have ended, stop jobs that have waited too long, and start jobs if the limit permits."""
        self._processes = [process for process in self._processes if process.poll() is None]
        for name in list(self._running):
            job = self._jobs.find(name)
            if job is None or job.over:
                del self._running[name]
                if job is not None:
                    self._tell(f"{name}: {job.status['TrainingJobStatus']}")
        now = time.time()
        for item in [item for item in self._waiting if item.until is not None and item.until < now]:
            with contextlib.suppress(RecordError):  # a full disk: tried again in the next round
                self._end(item.record, SecondaryStatus.MAX_WAIT_TIME_EXCEEDED, "")
                self._waiting.remove(item)
        self._fill()

    def _fill(self) -> None:
        while self._waiting and len(self._running) < self._limit and not self._closed.is_set():
            record = self._waiting[0].record
            try:
                if not record.lock():
                    return  # a reader holds the lock for a moment to test it: tried again in the next round
            except (FileNotFoundError, RecordError) as error:  # the record was removed
                self._waiting.pop(0)
                self._tell(f"{record.name} was not started: {error}")
                continue
            self._waiting.pop(0)
            self._start(record)

    def _start(self, record: JobRecord) -> None:
        """Start a supervisor for a job. The lock of the job's record must be held."""
        try:
            self._processes.append(launch.start(record, self._environment))
        except (BackendError, OSError) as error:
            failure = Failure(cause=Cause.LAUNCH, message=str(error))
            with contextlib.suppress(RecordError, ValueError):
                record.write_status(statuses.fail(record.stored_status() or {}, failure, time.time()))
            record.release()
        else:
            self._running[record.name] = record
            self._tell(f"{record.name}: started")
        record.queued_file.unlink(missing_ok=True)

    def _pend(self, record: JobRecord) -> None:
        status = record.stored_status()
        if status is not None:
            message = f"Waiting for capacity: this endpoint runs at most {self._limit} jobs at once"
            record.write_status(statuses.transition(status, SecondaryStatus.PENDING, time.time(), message))

    def _end(self, record: JobRecord, final: SecondaryStatus, message: str) -> None:
        status = record.stored_status()
        if status is not None:
            now = time.time()
            status = statuses.transition(status, SecondaryStatus.STOPPING, now)
            record.write_status(statuses.transition(status, final, now, message))
        record.queued_file.unlink(missing_ok=True)
        self._tell(f"{record.name}: {final.value}")


def _waiting(record: JobRecord, since: float, request: Mapping[str, object]) -> _Waiting:
    stopping = request.get("StoppingCondition")
    longest = stopping.get("MaxWaitTimeInSeconds") if isinstance(stopping, Mapping) else None
    return _Waiting(record, since, since + longest if isinstance(longest, int) else None)
