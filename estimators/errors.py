"""What can go wrong, as exceptions.

::

    FleetfitError                         everything that fleetfit raises on purpose
    ├── TrainingJobError                  a job failed; carries host, rank, exit code, traceback, hints
    ├── JobExistsError                    the name of a job is taken
    ├── JobNotFoundError                  there is no job of that name
    ├── JobUnreachableError               the job's supervisor does not answer
    ├── RecordError                       a job's record cannot be read or written
    ├── BackendError                      a backend cannot run jobs here, or could not start one
    └── ConfigurationError (ValueError)   an argument, a file or a request is wrong
        └── UnsupportedError              what was asked for exists, but not here: refused by name

    PreflightWarning (UserWarning)        a job will run, but perhaps not as it was meant to
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from container.contract.failures import Failure
    from estimators.jobs.handle import TrainingJob


class FleetfitError(Exception):
    """Base class of the errors that fleetfit raises on purpose."""


class TrainingJobError(FleetfitError):
    """A training job failed.

    The message says where and what, then the hints, then where the logs are; the user's traceback comes last, as it
    does when the script is run by hand.

    Attributes:
        job: The job's handle, or its name where there is no handle.
        failure: The first failure of the job, as data.
    """

    def __init__(self, job: TrainingJob | str, failure: Failure) -> None:
        self.job = job
        self.failure = failure
        super().__init__(_failure_message(job, failure))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.job, self.failure)

    @property
    def job_name(self) -> str:
        """The job's name."""
        return self.job if isinstance(self.job, str) else self.job.name

    @property
    def host(self) -> str | None:
        """The host on which it happened, if it has one."""
        return self.failure.host

    @property
    def rank(self) -> int | None:
        """The rank that failed first, if it was one."""
        return self.failure.rank

    @property
    def exit_code(self) -> int | None:
        """The exit status, if a process exited with an error."""
        return self.failure.exit_code

    @property
    def signal(self) -> int | None:
        """The number of the signal that killed a process, if one did."""
        return self.failure.signal

    @property
    def traceback(self) -> str | None:
        """The user's traceback, if there was one."""
        return self.failure.traceback

    @property
    def hints(self) -> tuple[str, ...]:
        """What the user may do about it."""
        return self.failure.hints


class JobExistsError(FleetfitError):
    """The name of a job is taken: a job's name is used once."""


class JobNotFoundError(FleetfitError, LookupError):
    """There is no record of a job of that name."""


class JobUnreachableError(FleetfitError):
    """The supervisor of a running job does not answer."""


class RecordError(FleetfitError):
    """A job's record cannot be read or written: a full disk, missing permissions, a newer version's format."""


class BackendError(FleetfitError):
    """A backend cannot run jobs here, or could not start one."""


class ConfigurationError(FleetfitError, ValueError):
    """An argument, a file or a request is wrong; nothing has been started."""


class UnsupportedError(ConfigurationError):
    """What was asked for exists, but not on this backend or with this strategy."""


class PreflightWarning(UserWarning):
    """The job will run, but perhaps not as it was meant to."""


def _failure_message(job: TrainingJob | str, failure: Failure) -> str:
    name = job if isinstance(job, str) else job.name
    parts = [f"training job {name!r} failed: {failure.summary()}"]
    parts += [f"hint: {hint}" for hint in failure.hints]
    if not isinstance(job, str):
        parts.append(f"logs: {job.record.hosts_dir}")
    if detail := failure.detail():
        parts += ["", detail]
    return "\n".join(parts)
