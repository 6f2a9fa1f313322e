"""A tuning job's record: ``$FLEETFIT_HOME/tuning/<name>/``.

``tuning.json`` is the spec, ``request.json`` SageMaker's form of it, ``template/`` what every trial's job is made of (a
job's record without a status of its own), ``study.journal`` Optuna's journal, which is the truth about the trials, and
``status.json`` and ``trials.json`` what readers see of it. The process that owns the study holds the lock.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
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
from estimators.records.record import JobRecord, jobs_folder
from estimators.tuning.config import TuningSpec

#: SageMaker's pattern for the name of a tuning job.
_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,31}")

#: The states of a trial.
RUNNING, COMPLETED, PRUNED, FAILED, STOPPED = "Running", "Completed", "Pruned", "Failed", "Stopped"

TERMINAL = ("Completed", "Failed", "Stopped")


class TuningRecord:
    """The record of one tuning job; readers see whole files.

    Attributes:
        path: Its folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __repr__(self) -> str:
        return f"TuningRecord({str(self.path)!r})"

    @classmethod
    def stage(cls, name: str, home: str | Path | None = None) -> TuningRecord:
        """Make a record that nobody sees, to be filled and then put in its place by :meth:`publish`.

        Raises:
            ConfigurationError: SageMaker would refuse the name.
            JobExistsError: the name is taken.
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

    def publish(self, name: str) -> None:
        """Put a staged record in its place, which only one creator can do.

        Raises:
            JobExistsError: the name is taken.
        """
        path = self.path.with_name(name)
        with explained(path, "create"):
            try:
                os.rename(self.path, path)
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    raise _taken(path) from None
                raise
        self.path = path

    def discard(self) -> None:
        """Remove a record that was staged."""
        remove_tree(self.path, ignore_errors=True)

    @classmethod
    def open(cls, name: str, home: str | Path | None = None) -> TuningRecord:
        """Find a tuning job's record.

        Raises:
            JobNotFoundError: there is none; the message has the nearest name.
        """
        path = tuning_folder(home) / str(name)
        if not isinstance(name, str) or not _NAME.fullmatch(name) or not path.is_dir():
            guess = nearest(str(name), tuning_names(home))
            hint = f" Did you mean {guess!r}?" if guess else ""
            raise JobNotFoundError(f"there is no tuning job {shown(name)} under {path.parent}.{hint}")
        return cls(path)

    @property
    def name(self) -> str:
        """The tuning job's name."""
        return self.path.name

    @property
    def home(self) -> Path:
        """The folder that ``FLEETFIT_HOME`` names."""
        return self.path.parent.parent

    @property
    def template(self) -> JobRecord:
        """What the trials' jobs are made of."""
        return JobRecord(self.path / "template")

    @property
    def journal(self) -> Path:
        """Optuna's journal of the study."""
        return self.path / "study.journal"

    @property
    def log(self) -> Path:
        """What the process itself printed."""
        return self.path / "tuner.log"

    @property
    def lock_file(self) -> Path:
        """Held by the process that owns the study."""
        return self.path / "lock"

    @property
    def reserve_file(self) -> Path:
        """Space of the disk that is kept for what has to be written when there is no other."""
        return self.path / ".reserve"

    @property
    def stop_file(self) -> Path:
        """There when the tuning job is to be stopped."""
        return self.path / "stop"

    @property
    def is_managed(self) -> bool:
        """Whether the tuning job lives on a service of somebody else's, and is only followed from here."""
        options = JobOptions.from_dict(self.template.read_options())
        fleet = fleets.find(options.backend)
        return fleet is not None and fleet.capabilities.managed

    def is_supervised(self) -> bool:
        """Return whether a process owns the study."""
        return locks.is_held(self.lock_file)

    def read(self, name: str) -> Any:
        """Return what a JSON file of the record holds; an empty dict where there is none."""
        return files.read_json(self.path / f"{name}.json")

    def write(self, name: str, value: Any) -> None:
        """Replace a JSON file of the record.

        Raises:
            RecordError: it cannot be written.
        """
        replace_json(self.path / f"{name}.json", value, self.reserve_file)

    @property
    def spec(self) -> TuningSpec:
        """What was asked for."""
        return rules.from_dict(TuningSpec, self.read("tuning")["spec"])  # type: ignore[no-any-return]

    def status(self) -> dict[str, Any]:
        """Return DescribeHyperParameterTuningJob's variable part, as its process last wrote it."""
        found: dict[str, Any] = self.read("status")
        return found

    def trials(self) -> list[dict[str, Any]]:
        """Return the trials, by number: ``number, job, values, state, value, reason, created, started, ended, …``."""
        found: list[dict[str, Any]] = self.read("trials").get("trials", [])
        return found

    def ask_to_stop(self) -> None:
        """Have the process stop the trials and end."""
        with explained(self.stop_file, "write"):
            os.close(os.open(self.stop_file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))

    def log_tail(self, size: int = 2000) -> str:
        """Return the end of what the process printed."""
        with contextlib.suppress(OSError):
            return self.log.read_bytes()[-size:].decode("utf-8", "replace").strip()
        return ""


def is_terminal(status: dict[str, Any]) -> bool:
    """Return whether a tuning job is over."""
    return status.get("HyperParameterTuningJobStatus") in TERMINAL


def tuning_folder(home: str | Path | None = None) -> Path:
    """Return the folder of all tuning jobs."""
    return jobs_folder(home).parent / "tuning"


def tuning_names(home: str | Path | None = None) -> list[str]:
    """Return the names of all tuning jobs on record, sorted."""
    try:
        with os.scandir(tuning_folder(home)) as entries:
            return sorted(entry.name for entry in entries if _NAME.fullmatch(entry.name) and entry.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _taken(path: Path) -> JobExistsError:
    return JobExistsError(f"a tuning job named {path.name!r} exists already: {path}. Choose another job_name.")
