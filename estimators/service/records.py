"""Read the jobs' records for the endpoint, and store the endpoint's own data in the records.

The endpoint's own files in a record are ``service.json`` and ``queued``.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from container.contract.frozen import dataclass
from container.system import files
from estimators.job.errors import RecordError
from estimators.records import status as statuses
from estimators.records.record import JobRecord, is_job_name, job_names, jobs_folder
from estimators.service import settings
from estimators.service.errors import not_found


@dataclass(frozen=True)
class Job:
    """The state of a job at one point in time.

    Attributes:
        record: The job's record.
        status: The job's status, as written by the job's supervisor, which is the process that runs the job. The
            members are those of DescribeTrainingJob's response.
        own: The data that the endpoint has stored about the job. Empty if ``fit()`` has started the job.
    """

    record: JobRecord
    status: Mapping[str, Any]
    own: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Return the job's name."""
        return self.record.name

    @property
    def over(self) -> bool:
        """Return whether the job has ended."""
        return statuses.is_terminal(self.status)

    @property
    def request(self) -> dict[str, Any]:
        """Return the client's CreateTrainingJob request."""
        found: dict[str, Any] = self.own.get("request") or self.record.read_request()
        return found

    @property
    def tags(self) -> list[dict[str, str]]:
        """Return the job's tags."""
        tags: list[dict[str, str]] = self.own["tags"] if "tags" in self.own else self.request.get("Tags") or []
        return tags

    @property
    def created(self) -> float:
        """Return the time at which the job was created, in seconds since the epoch."""
        return float(self.status.get("CreationTime") or 0.0)


class Jobs:
    """A reader of the jobs' records. Data that does not change any more is cached.

    Args:
        home: The path of ``$FLEETFIT_HOME``.
        region: The region that the jobs appear to be in.
    """

    def __init__(self, home: Path, region: str) -> None:
        self.home = home
        self.region = region
        self._lock = threading.Lock()
        self._changes = threading.Lock()
        self._over: dict[str, tuple[int, dict[str, Any]]] = {}
        self._own: dict[str, tuple[int, dict[str, Any]]] = {}

    def get(self, name: str) -> Job:
        """Return a job.

        Raises:
            ServiceError: the job does not exist.
        """
        job = self.find(name)
        if job is None:
            raise not_found()
        return job

    def find(self, name: str) -> Job | None:
        """Return a job. Return None if the job does not exist or cannot be read."""
        record = JobRecord(jobs_folder(self.home) / name)
        if not is_job_name(name) or not record.path.is_dir():
            return None
        try:
            return Job(record, self._status(record), self.own(record))
        except (LookupError, RecordError, FileNotFoundError):
            return None  # the record is being removed, or is from a newer fleetfit

    def all(self) -> Iterator[Job]:
        """Yield every job, ordered by name."""
        for name in job_names(self.home):
            job = self.find(name)
            if job is not None:
                yield job

    def arn(self, name: str) -> str:
        """Return a job's ARN."""
        return settings.job_arn(self.region, name)

    def _status(self, record: JobRecord) -> dict[str, Any]:
        try:
            stamp = os.stat(record.status_file).st_mtime_ns
        except FileNotFoundError:
            stamp = 0
        with self._lock:
            kept = self._over.get(record.name)
        if kept is not None and kept[0] == stamp:
            return kept[1]
        status = record.read_status()
        if stamp and statuses.is_terminal(status):
            with self._lock:
                self._over[record.name] = (stamp, status)
        return status

    # --- the endpoint's own data in a record ---

    def own(self, record: JobRecord) -> dict[str, Any]:
        """Return the data that the endpoint has stored about a job. Return an empty dict if there is no such data."""
        path = record.asked_file
        # The lock covers both steps, because two writes in quick succession may have the same modification time.
        with self._lock:
            try:
                stamp = os.stat(path).st_mtime_ns
            except FileNotFoundError:
                return {}
            kept = self._own.get(record.name)
            if kept is None or kept[0] != stamp:
                kept = self._own[record.name] = (stamp, files.read_json(path))
            return kept[1]

    def write_own(self, record: JobRecord, values: dict[str, Any]) -> None:
        """Replace the data that the endpoint has stored about a job."""
        with self._lock:
            self._own.pop(record.name, None)
            record.write_json(record.asked_file, values)

    @contextlib.contextmanager
    def changing(self, name: str) -> Iterator[tuple[Job, dict[str, Any]]]:
        """Change the data that the endpoint has stored about a job. The data is written at the end of the block.

        If several threads use this method, their changes are made one after the other.

        Args:
            name: The job's name.

        Yields:
            The job, and its data, which the block changes.

        Raises:
            ServiceError: the job does not exist.
        """
        with self._changes:
            job = self.get(name)
            own = {**job.own, "request": job.request}
            yield job, own
            self.write_own(job.record, own)

    def forget(self, name: str) -> None:
        """Remove the cached data of a job that was deleted."""
        with self._lock:
            self._over.pop(name, None)
            self._own.pop(name, None)
