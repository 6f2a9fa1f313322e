"""A job that lives elsewhere, at a service: what it says of the job goes into the record."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from container.contract.failures import Failure
from estimators.records import status as statuses
from estimators.records.record import JobRecord
from estimators.supervisor.journal import Journal


class Mirror:
    """How the job stands where it lives.

    Args:
        record: The job's record.
        journal: What the supervisor writes there.

    Attributes:
        resumed: Whether an earlier supervisor has followed the job, and was lost: it is followed on from where it was.
        begun: Whether the job's status is the service's.
        last: The service's last description of a job that is over.
    """

    def __init__(self, record: JobRecord, journal: Journal) -> None:
        self._record = record
        self._journal = journal
        self.resumed = self.begun = statuses.lives_elsewhere(journal.status)
        self.last: Mapping[str, Any] | None = None

    def recall(self) -> Failure | None:
        """Take over what the earlier supervisor has learnt of the job; return a failure that a host has reported."""
        self._journal.recall()
        for event in self._record.events("failure"):
            if event.attempt == self._journal.attempt:
                return Failure.from_dict(event.data)
        return None

    def note(self, values: Mapping[str, Any]) -> None:
        """Keep values with the status."""
        self._journal.keep(**values)
        self._journal.write_status()

    def described(self, there: Mapping[str, Any]) -> None:
        """The service has described the job, in DescribeTrainingJob's shape."""
        self.begun = True
        self._journal.status = statuses.mirrored(self._journal.status, there, time.time())
        self._journal.write_status()

    def restarted(self, number: int) -> None:
        """The service has started the job again, for this time (from 1)."""
        self._journal.start_attempt(number)
        self._journal.event("restart")
        self.note({"attempt": number})
