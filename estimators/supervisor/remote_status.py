"""Copy the status of a job that runs on a managed service into the job's record."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from container.contract.failures import Failure
from estimators.records import status as statuses
from estimators.records.record import JobRecord
from estimators.supervisor.journal import Journal


class Mirror:
    """The handler that copies a job's status from a managed service, which runs the job, into the job's record.

    Args:
        record: The job's record.
        journal: The journal of the job.

    Attributes:
        resumed: Whether an earlier supervisor followed the job and was lost, so that this supervisor continues to
            follow the job.
        begun: Whether the job's status is copied from the service.
        last: The service's last description of an ended job. None before the job has ended.
    """

    def __init__(self, record: JobRecord, journal: Journal) -> None:
        self._record = record
        self._journal = journal
        self.resumed = self.begun = statuses.lives_elsewhere(journal.status)
        self.last: Mapping[str, Any] | None = None

    def recall(self) -> Failure | None:
        """Load the metrics and the failure that an earlier supervisor of the job has recorded.

        Returns:
            The failure that a host reported in the current attempt, or None.
        """
        self._journal.recall()
        for event in self._record.events("failure"):
            if event.attempt == self._journal.attempt:
                return Failure.from_dict(event.data)
        return None

    def note(self, values: Mapping[str, Any]) -> None:
        """Store values in the status, and write the status to the disk."""
        self._journal.keep(**values)
        self._journal.write_status()

    def described(self, there: Mapping[str, Any]) -> None:
        """Write the service's description of the job into the status.

        Args:
            there: The description, a response of DescribeTrainingJob.
        """
        self.begun = True
        self._journal.status = statuses.mirrored(self._journal.status, there, time.time())
        self._journal.write_status()

    def restarted(self, number: int) -> None:
        """Record that the service has restarted the job.

        Args:
            number: The number of the new attempt. The first restart begins attempt 1.
        """
        self._journal.start_attempt(number)
        self._journal.event("restart")
        self.note({"attempt": number})
