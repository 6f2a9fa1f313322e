"""Find the records of tuning jobs that ``fleetfit clean`` will remove. This module itself removes nothing."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from estimators.job.errors import ConfigurationError, JobNotFoundError, RecordError
from estimators.tuning.record import TuningRecord, is_terminal, tuning_names

#: Maximum time to wait until the process of an ended tuning job exits, in seconds.
_ENDING_S = 10.0


class Study(NamedTuple):
    """A tuning job on record.

    Attributes:
        record: The tuning job's record.
        over: Whether no process runs the tuning job, and the tuning job has ended or its record is damaged.
        ended: The end time, in seconds since the epoch. Without an end time, the time of the last modification.
        trials: The names of the trials' jobs.
    """

    record: TuningRecord
    over: bool
    ended: float
    trials: tuple[str, ...]


def studies(home: str | Path | None = None) -> list[Study]:
    """Return all tuning jobs on record."""
    found = []
    for name in tuning_names(home):
        with contextlib.suppress(JobNotFoundError):  # another process has removed the record meanwhile
            found.append(_study(TuningRecord.open(name, home)))
    return found


def _study(record: TuningRecord) -> Study:
    status: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    try:
        status, rows = record.status(), record.trials()
        over = is_terminal(status) or not status
    except (RecordError, ValueError):
        over = True  # damaged: no process can continue it
    end = status.get("HyperParameterTuningEndTime") or status.get("LastModifiedTime")
    try:
        ended = float(end) if end is not None else record.path.stat().st_mtime
    except FileNotFoundError:
        raise JobNotFoundError(record.name) from None
    return Study(record, over and not record.is_supervised(), ended, tuple(str(row["job"]) for row in rows))


def needed(found: Iterable[Study]) -> dict[str, str]:
    """Return the trials that must not be removed, because their tuning jobs have not ended.

    The result is a mapping from the name of each trial's job to the name of its tuning job.
    """
    return {job: study.record.name for study in found if not study.over for job in study.trials}


def named(names: Iterable[str], home: str | Path | None = None) -> list[Study]:
    """Return the tuning jobs that the user has named for removal.

    If a tuning job has ended and its process is still running, wait until the process exits, at most 10 seconds.

    Raises:
        JobNotFoundError: a tuning job does not exist.
        ConfigurationError: a tuning job has not ended.
    """
    chosen = []
    for name in dict.fromkeys(names):
        record = TuningRecord.open(name, home)
        until = time.monotonic() + _ENDING_S
        while not (study := _study(record)).over:
            if not is_terminal(record.status()) or time.monotonic() > until:
                raise ConfigurationError(
                    f"tuning job {name!r} has not ended. Stop it with `fleetfit tuning {name} --stop`, then remove it."
                )
            time.sleep(0.05)
        chosen.append(study)
    return chosen


def spent(
    found: Iterable[Study],
    going: Iterable[str],
    staying: Iterable[str],
    older_than_s: float | None,
    now: float,
    *,
    all_: bool,
) -> list[Study]:
    """Return the ended tuning jobs whose trials have all been removed, or are being removed now.

    With ``older_than_s``, only tuning jobs that ended at least this long ago are returned. Without ``older_than_s``, a
    tuning job is returned only if one of its trials is being removed now, or if ``all_`` is true.

    Args:
        found: The tuning jobs.
        going: The jobs that are being removed.
        staying: The other jobs on record.
        older_than_s: The minimum time since the end of a tuning job, in seconds, or None.
        now: The current time, in seconds since the epoch.
        all_: Whether to also return a tuning job if none of its trials is being removed now, such as a tuning job on
            SageMaker. Used only if ``older_than_s`` is None.
    """
    goes, stays = set(going), set(staying)
    return [
        study
        for study in found
        if study.over
        and stays.isdisjoint(study.trials)
        and (
            now - study.ended >= older_than_s if older_than_s is not None else all_ or not goes.isdisjoint(study.trials)
        )
    ]
