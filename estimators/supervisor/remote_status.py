"""Copies the state of a job that runs at a service into the job's record."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from container.contract.failures import Failure
from estimators.records import status as statuses
from estimators.records.record import JobRecord
from estimators.supervisor.journal import Journal


class Mirror:
    """The state of a job at the service that runs it.

    Args:
        record: The job's record.
        journal: The journal of the job.

    Attributes:
        resumed: Whether an earlier supervisor followed the job and was lost; this one continues from there.
        begun: Whether the job's status comes from the service.
        last: The service's last description of a completed job; else None.
    """

    def __init__(self, record: JobRecord, journal: Journal) -> None:
        self._record = record
        self._journal = journal
        self.resumed = self.begun = statuses.lives_elsewhere(journal.status)
        self.last: Mapping[str, Any] | None = None

    def recall(self) -> Failure | None:
        """Load what the earlier supervisor has recorded of the job; return a failure that a host has reported."""
        self._journal.recall()
        for event in self._record.events("failure"):
            if event.attempt == self._journal.attempt:
                return Failure.from_dict(event.data)
        return None

    def note(self, values: Mapping[str, Any]) -> None:
        """Store values in the status, and write it."""
        self._journal.keep(**values)
        self._journal.write_status()

    def described(self, there: Mapping[str, Any]) -> None:
        """Write the service's description of the job, in DescribeTrainingJob's shape, into the status."""
        self.begun = True
        self._journal.status = statuses.mirrored(self._journal.status, there, time.time())
        self._journal.write_status()

    def restarted(self, number: int) -> None:
        """Record that the service has restarted the job as attempt ``number`` (from 1)."""
        self._journal.start_attempt(number)
        self._journal.event("restart")
        self.note({"attempt": number})
