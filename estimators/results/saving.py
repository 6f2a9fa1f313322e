"""``result.json``: a job's result, kept in its record when the job is over."""

from __future__ import annotations

import contextlib

from estimators.errors import FleetfitError, RecordError
from estimators.jobs import status as statuses
from estimators.jobs.record import JobRecord
from estimators.result import FORMAT, Result
from estimators.results.build import build

FILE = "result.json"


def result_of(record: JobRecord, *, model_data: str | None, checkpoints: str | None) -> Result:
    """The result of a job: as it was saved, or made anew of what is on record.

    A job of an older version, one that is not over, or one whose supervisor is still completing its provenance has
    none saved.

    Args:
        record: The job's record.
        model_data: Where the model is.
        checkpoints: Where the checkpoints are.
    """
    with contextlib.suppress(RecordError):
        values = record.read_json(record.path / FILE)
        if isinstance(values, dict) and values.get("format") == FORMAT:
            return Result.from_dict(values)
    return build(record, model_data=model_data, checkpoints=checkpoints)


def save(record: JobRecord) -> None:
    """Keep the result of a job that is over; the supervisor calls it last. Without it readers make it anew."""
    from estimators.jobs.handle import TrainingJob

    if not statuses.is_terminal(record.stored_status() or {}):
        return
    with contextlib.suppress(FleetfitError, OSError, ValueError, KeyError, TypeError):
        record.write_json(record.path / FILE, TrainingJob(record).result().to_dict())
