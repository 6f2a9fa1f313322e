"""What ``fleetfit clean`` removes of tuning jobs: their records, with the trials or after them. It changes nothing."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from estimators.job.errors import ConfigurationError, JobNotFoundError, RecordError
from estimators.tuning.record import TuningRecord, is_terminal, tuning_names

#: How long a tuning job's process may stay after its end, with room to spare, in seconds.
_ENDING_S = 10.0


class Study(NamedTuple):
    """A tuning job on record.

    Attributes:
        record: Its record.
        over: Whether it has ended and no process owns it.
        ended: When it ended, in seconds since the epoch; of a record that cannot be read, when it was last written.
        trials: Its trials' jobs.
    """

    record: TuningRecord
    over: bool
    ended: float
    trials: tuple[str, ...]


def studies(home: str | Path | None = None) -> list[Study]:
    """Return all tuning jobs on record."""
    return list(_studies(home))


def _studies(home: str | Path | None) -> Iterator[Study]:
    for name in tuning_names(home):
        try:
            record = TuningRecord.open(name, home)
            yield _study(record)
        except JobNotFoundError:
            continue  # somebody else has removed it meanwhile


def _study(record: TuningRecord) -> Study:
    status: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    try:
        status, rows = record.status(), record.trials()
        over = is_terminal(status) or not status
    except (RecordError, ValueError):
        over = True  # damaged: nobody goes on with it
    end = status.get("HyperParameterTuningEndTime") or status.get("LastModifiedTime")
    try:
        ended = float(end) if end is not None else record.path.stat().st_mtime
    except FileNotFoundError:
        raise JobNotFoundError(record.name) from None
    return Study(record, over and not record.is_supervised(), ended, tuple(str(row["job"]) for row in rows))


def needed(found: Iterable[Study]) -> dict[str, str]:
    """Return the jobs that a tuning job which is not over still needs, each with the tuning job's name."""
    return {job: study.record.name for study in found if not study.over for job in study.trials}


def named(names: Iterable[str], home: str | Path | None = None) -> list[Study]:
    """Return tuning jobs by name, which are to be removed with their trials.

    Raises:
        JobNotFoundError: there is none of a name.
        ConfigurationError: one is not over.
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
    """Return the tuning jobs that are over and of whose trials no job is left on record.

    Args:
        found: The tuning jobs.
        going: The jobs that are being removed.
        staying: The other jobs on record.
        older_than_s: Only those that ended so many seconds ago; None for no bound.
        now: The time, in seconds since the epoch.
        all_: Without that bound, also those whose trials were not on record before: they may be on SageMaker.
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
