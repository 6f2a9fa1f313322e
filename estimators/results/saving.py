"""``result.json``: a job's result, kept in its record when the job is over."""

from __future__ import annotations

import contextlib

from estimators.job.errors import FleetfitError, RecordError
from estimators.records import status as statuses
from estimators.records.record import JobRecord
from estimators.results.build import build
from estimators.results.result import FORMAT, Result

FILE = "result.json"


def result_of(record: JobRecord) -> Result:
    """Return the result of a job: as it was saved, or made anew of what is on record.

    A job of an older version, one that is not over, or one whose supervisor is still completing its provenance has
    none saved.

    Args:
        record: The job's record.
    """
    with contextlib.suppress(RecordError):
        values = record.read_json(record.path / FILE)
        if isinstance(values, dict) and values.get("format") == FORMAT:
            return Result.from_dict(values)
    return build(record)


def save(record: JobRecord) -> None:
    """Keep the result of a job that is over; the supervisor calls it last. Without it readers make it anew."""
    if not statuses.is_terminal(record.stored_status() or {}):
        return
    with contextlib.suppress(FleetfitError, OSError, ValueError, KeyError, TypeError):
        record.write_json(record.path / FILE, result_of(record).to_dict())
