"""Access a tuning job's record: ``$FLEETFIT_HOME/tuning/<name>/``.

``tuning.json`` contains the spec, and ``request.json`` contains the spec as a request of SageMaker. ``template/`` is a
job's record without a status, from which the record of each trial's job is made. ``study.journal`` is Optuna's journal.
It is the authoritative source for the state of the trials. ``status.json`` and ``trials.json`` contain the same state
for other readers. The file ``lock`` is locked by the tuning job's process.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from container.contract import rules
from container.contract.names import nearest, shown
from container.system import files, locks
from container.system.removing import remove_tree
from estimators.job import fleets
from estimators.job.errors import ConfigurationError, JobExistsError, JobNotFoundError
from estimators.job.request import JobOptions
from estimators.records.private_files import explained, replace_json, reserve
from estimators.records.record import JobRecord, jobs_folder, publish
from estimators.tuning.config import TuningSpec

#: SageMaker's pattern for the name of a tuning job.
_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,31}")

#: The states of a trial.
RUNNING, COMPLETED, PRUNED, FAILED, STOPPED = "Running", "Completed", "Pruned", "Failed", "Stopped"

TERMINAL = ("Completed", "Failed", "Stopped")


class TuningRecord:
    """The record of one tuning job. Files are replaced atomically, so that readers always see complete files.

    Attributes:
        path: The record's folder.
        name: The tuning job's name.
        home: The folder that contains ``tuning/`` with this record, normally ``$FLEETFIT_HOME``.
        template: The record that is the template of the trials' jobs.
        journal: The path of Optuna's journal of the study.
        log: The path of the log of the tuning job's process.
        lock_file: The path of the lock file. The tuning job's process holds the lock.
        reserve_file: The path of the file that reserves disk space. If the disk is full, the file is made smaller, so
            that the record can still be written.
        stop_file: The path of the file that a client creates to request a stop of the tuning job.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name
        self.home = path.parent.parent
        self.template = JobRecord(path / "template")
        self.journal = path / "study.journal"
        self.log = path / "tuner.log"
        self.lock_file = path / "lock"
        self.reserve_file = path / ".reserve"
        self.stop_file = path / "stop"

    def __repr__(self) -> str:
        return f"TuningRecord({str(self.path)!r})"

    @classmethod
    def stage(cls, name: str, home: str | Path | None = None) -> TuningRecord:
        """Create a record under a hidden name. The caller fills the record, then calls :meth:`publish`.

        Raises:
            ConfigurationError: SageMaker would not accept the name.
            JobExistsError: the name is already used.
            RecordError: the folder cannot be written.
        """
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ConfigurationError(
                f"{shown(name)} is not a valid name of a tuning job: use 1 to 32 letters, digits and dashes."
            )
        folder = tuning_folder(home)
        path = folder / name
        aside = folder / f".{name}.{os.urandom(6).hex()}"
        with explained(path, "create"):
            folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
            if path.exists():
                raise _taken(path)
            aside.mkdir(mode=0o700)
            (aside / "template").mkdir(mode=0o700)
            reserve(cls(aside).reserve_file)
        return cls(aside)

    def publish(self, name: str) -> TuningRecord:
        """Move a staged record to its final path, and return the record at this path.

        The move is atomic, so that only one of several creators succeeds.

        Raises:
            JobExistsError: the name is already used.
        """
        path = self.path.with_name(name)
        publish(self.path, path, _taken(path))
        return TuningRecord(path)

    def discard(self) -> None:
        """Remove a record that has not been published."""
        remove_tree(self.path, ignore_errors=True)

    @classmethod
    def open(cls, name: str, home: str | Path | None = None) -> TuningRecord:
        """Open a tuning job's record.

        Raises:
            JobNotFoundError: the name has no record. The message suggests the most similar name.
        """
        path = tuning_folder(home) / str(name)
        if not isinstance(name, str) or not _NAME.fullmatch(name) or not path.is_dir():
            guess = nearest(str(name), tuning_names(home))
            hint = f" Did you mean {guess!r}?" if guess else ""
            raise JobNotFoundError(f"there is no tuning job {shown(name)} under {path.parent}.{hint}")
        return cls(path)

    @property
    def is_managed(self) -> bool:
        """Return whether the tuning job runs on a managed service. If so, the process on this machine only
        follows it.
        """
        options = JobOptions.from_dict(self.template.read_options())
        fleet = fleets.find(options.backend)
        return fleet is not None and fleet.capabilities.managed

    def is_supervised(self) -> bool:
        """Return whether the tuning job's process is running and holds the lock."""
        return locks.is_held(self.lock_file)

    def read(self, name: str) -> Any:
        """Return the content of a JSON file of the record. Return an empty dict if the file does not exist."""
        return files.read_json(self.path / f"{name}.json")

    def write(self, name: str, value: Any) -> None:
        """Replace a JSON file of the record.

        Raises:
            RecordError: the file cannot be written.
        """
        replace_json(self.path / f"{name}.json", value, self.reserve_file)

    @property
    def spec(self) -> TuningSpec:
        """Return the spec of the tuning job."""
        return rules.from_dict(TuningSpec, self.read("tuning")["spec"])  # type: ignore[no-any-return]

    def status(self) -> dict[str, Any]:
        """Return the status that the tuning job's process last wrote.

        The status contains the members of a DescribeHyperParameterTuningJob response that change while the tuning job
        runs.
        """
        found: dict[str, Any] = self.read("status")
        return found

    def trials(self) -> list[dict[str, Any]]:
        """Return the rows of the trials, in the order of the trials' numbers.

        The members of a row include ``number``, ``job``, ``values``, ``state``, ``value``, ``reason``, ``created``,
        ``started`` and ``ended``.
        """
        found: list[dict[str, Any]] = self.read("trials").get("trials", [])
        return found

    def ask_to_stop(self) -> None:
        """Request that the tuning job's process stops the trials and exits."""
        with explained(self.stop_file, "write"):
            os.close(os.open(self.stop_file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))


def is_terminal(status: dict[str, Any]) -> bool:
    """Return whether a tuning job has ended."""
    return status.get("HyperParameterTuningJobStatus") in TERMINAL


def best_row(rows: Iterable[dict[str, Any]], *, maximize: bool) -> dict[str, Any] | None:
    """Return the row of the completed trial with the best value. Return None if no trial has completed.

    Args:
        rows: The rows of the trials, as :meth:`TuningRecord.trials` returns them.
        maximize: Whether a greater value is better.
    """
    good = [row for row in rows if row["state"] == COMPLETED]
    return (max if maximize else min)(good, key=lambda row: row["value"], default=None)


def tuning_folder(home: str | Path | None = None) -> Path:
    """Return the folder that contains the records of all tuning jobs."""
    return jobs_folder(home).parent / "tuning"


def tuning_names(home: str | Path | None = None) -> list[str]:
    """Return the names of all tuning jobs that have a record, sorted."""
    try:
        with os.scandir(tuning_folder(home)) as entries:
            return sorted(entry.name for entry in entries if _NAME.fullmatch(entry.name) and entry.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _taken(path: Path) -> JobExistsError:
    return JobExistsError(f"a tuning job named {path.name!r} exists already: {path}. Choose another job_name.")
