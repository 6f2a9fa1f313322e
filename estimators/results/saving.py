"""Save a job's result as ``result.json`` in the job's record when the job is over."""

from __future__ import annotations

import contextlib

from estimators.job.errors import FleetfitError, RecordError
from estimators.records import status as statuses
from estimators.records.record import JobRecord
from estimators.results.build import build
from estimators.results.result import FORMAT, Result

FILE = "result.json"


def result_of(record: JobRecord) -> Result:
    """Return the result of a job. If the job has no saved result, build the result from the job's record.

    The following jobs have no saved result: jobs that an older version ran, running jobs, and jobs whose supervisor is
    still completing the provenance.

    Args:
        record: The job's record.
    """
    with contextlib.suppress(RecordError):
        values = record.read_json(record.path / FILE)
        if isinstance(values, dict) and values.get("format") == FORMAT:
            return Result.from_dict(values)
    return build(record)


def save(record: JobRecord) -> None:
    """Save the result of a job that is over. Ignore errors, because readers can build the result from the record."""
    if not statuses.is_terminal(record.stored_status() or {}):
        return
    with contextlib.suppress(FleetfitError, OSError, ValueError, KeyError, TypeError):
        record.write_json(record.path / FILE, result_of(record).to_dict())
