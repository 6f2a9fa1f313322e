"""Define the exceptions of fleetfit.

::

    FleetfitError                         base of all errors that fleetfit raises
    ├── TrainingJobError                  a job failed (has host, rank, exit code, traceback and hints)
    ├── TuningJobError                    a tuning job failed
    ├── JobExistsError                    the name of a job is already used
    ├── JobNotFoundError                  no job has the name
    ├── JobUnreachableError               the job's supervisor does not answer
    ├── RecordError                       a job's record cannot be read or written
    ├── BackendError                      a backend cannot run jobs on this machine, or could not start a job
    └── ConfigurationError (ValueError)   an argument, a file or a request is wrong
        ├── ArgumentNameError (TypeError) an argument does not exist
        └── UnsupportedError              a feature exists, but not with the selected backend or strategy

    PreflightWarning (UserWarning)        a job will run, but perhaps not as intended
"""

from __future__ import annotations

import contextlib
import sys
import types
import warnings
from typing import TYPE_CHECKING, Any

from container.contract.errors import ArgumentNameError as ArgumentNameError
from container.contract.errors import ConfigurationError as ConfigurationError
from container.contract.errors import FleetfitError as FleetfitError

if TYPE_CHECKING:
    from container.contract.failures import Failure


for _error in (FleetfitError, ConfigurationError, ArgumentNameError):
    # users see and import the classes from this module; the toolkit, which also raises them, cannot import it
    _error.__module__ = __name__

#: The packages whose frames are omitted from the users' tracebacks.
_NOT_THE_USERS = ("estimators", "container", "IPython", "ipykernel", "traitlets", "nbclient", "concurrent", "asyncio")


def _in_ipython(error: BaseException) -> list[str]:
    """Return IPython's display of an error: the message and the frames of the user's code. Omit fleetfit's frames."""
    from IPython.core.getipython import get_ipython

    cause, suppressed = error.__cause__, error.__suppress_context__
    try:
        if _explains_its_cause(error):
            error.__cause__, error.__suppress_context__ = None, True
        formatter = get_ipython().InteractiveTB
        return list(formatter.structured_traceback(type(error), error, _users_frames(error), tb_offset=0))
    finally:
        error.__cause__, error.__suppress_context__ = cause, suppressed


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """Warn the user. Python then shows the line of the user's code that called fleetfit."""
    level = 2  # the caller of this function
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and _is_ours(frame):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)


def _is_ours(frame: types.FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] in _NOT_THE_USERS


def _users_frames(error: BaseException) -> types.TracebackType | None:
    """Return a traceback that contains only the user's frames, without the frames of fleetfit and the notebook."""
    frames = []
    trace = error.__traceback__
    while trace is not None:
        if not _is_ours(trace.tb_frame):
            frames.append(trace)
        trace = trace.tb_next
    made = None
    for one in reversed(frames):
        made = types.TracebackType(made, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return made


def _explains_its_cause(error: BaseException) -> bool:
    """Return whether the causes of an error need not be shown, because the error's message is complete without them.

    This is true for all errors of fleetfit, except for a :class:`TrainingJobError` without the script's traceback. On
    SageMaker, only the cause of such an error has the traceback.
    """
    return isinstance(error, FleetfitError) and (not isinstance(error, TrainingJobError) or bool(error.traceback))


class _Rendering:
    """A callable that displays one error in IPython. Pickling replaces it by None."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __call__(self) -> list[str]:
        return _in_ipython(self._error)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()


def with_users_frames_only(error: BaseException) -> BaseException:
    """Mark an error of the user's code, and return the error.

    Python and IPython show a marked error without fleetfit's frames.
    """
    with contextlib.suppress(AttributeError, TypeError):  # the class may not allow other attributes
        error._render_traceback_ = _Rendering(error)  # type: ignore[attr-defined]
    shorten_uncaught()
    return error


def _chain(error: BaseException) -> list[BaseException]:
    """Return an error with all errors that caused it."""
    found: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is not None and not any(one is known for known in found):
            found.append(one)
            waiting += [one.__cause__, one.__context__]
    return found


def shorten_uncaught() -> None:
    """Set ``sys.excepthook``, so that Python shows only the user's frames of an uncaught error of fleetfit.

    Errors of fleetfit among the causes of another error are also shown without fleetfit's frames. An interrupt that has
    already been reported (:func:`is_told`) is not reported again. In Python's development mode (``python -X dev``), all
    frames are shown.

    The first error of fleetfit in a process calls this function.
    """
    previous = sys.excepthook
    if getattr(previous, "__module__", None) == __name__ or sys.flags.dev_mode:
        return

    def hook(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
        ours = [one for one in _chain(error) if callable(getattr(one, "_render_traceback_", None))] if error else []
        if not ours:
            previous(kind, error, trace)
            return
        if is_told(error):
            return
        before = [(one, one.__traceback__, one.__cause__, one.__suppress_context__) for one in ours]
        try:
            for one in ours:
                if _explains_its_cause(one):
                    one.__cause__, one.__suppress_context__ = None, True
                one.__traceback__ = _users_frames(one)
            previous(kind, error, error.__traceback__ if any(one is error for one in ours) else trace)
        finally:  # a debugger may still need the frames
            for one, frames, cause, suppressed in before:
                one.__traceback__, one.__cause__, one.__suppress_context__ = frames, cause, suppressed

    sys.excepthook = hook


def is_told(error: BaseException) -> bool:
    """Return whether an error is a KeyboardInterrupt that fleetfit has already reported to the user."""
    return isinstance(error, KeyboardInterrupt) and hasattr(error, "_render_traceback_")


FleetfitError._render_traceback_ = _in_ipython  # type: ignore[attr-defined]  # the name that IPython looks up
FleetfitError.on_creation = staticmethod(shorten_uncaught)


class TrainingJobError(FleetfitError):
    """Raised if a training job failed.

    The message contains, in this order: the failure with its host or rank, the hints, the location of the logs, and the
    traceback of the script. The traceback is last, as in the output of a script that runs without fleetfit.

    Attributes:
        job: The :class:`~estimators.client.training_job.TrainingJob`, or the job's name if there is no such object.
        failure: The first failure of the job.
        tail: Whether the message ends with the last lines of the output if there is no traceback. False if the user has
            already seen the output.
    """

    def __init__(self, job: Any, failure: Failure, *, tail: bool = True) -> None:
        self.job = job
        self.failure = failure
        super().__init__(_message(job, failure, tail=tail))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.job, self.failure)

    @property
    def job_name(self) -> str:
        """Return the job's name."""
        return self.job if isinstance(self.job, str) else self.job.name

    @property
    def host(self) -> str | None:
        """Return the host that failed. Return None if the failure did not happen on a host."""
        return self.failure.host

    @property
    def rank(self) -> int | None:
        """Return the rank that failed first. Return None if the failure did not happen in a rank."""
        return self.failure.rank

    @property
    def exit_code(self) -> int | None:
        """Return the exit status of the failed process. Return None if no process exited."""
        return self.failure.exit_code

    @property
    def signal(self) -> int | None:
        """Return the number of the signal that killed the failed process. Return None if no signal killed a process."""
        return self.failure.signal

    @property
    def traceback(self) -> str | None:
        """Return the user's traceback. Return None if there is no traceback."""
        return self.failure.traceback

    @property
    def hints(self) -> tuple[str, ...]:
        """Return the hints that tell the user how to fix the failure."""
        return self.failure.hints


class TuningJobError(FleetfitError):
    """Raised if a tuning job failed because its trials failed or never reported the objective."""


class JobExistsError(FleetfitError):
    """Raised if the name of a new job is already used. A name can be used only once."""


class JobNotFoundError(FleetfitError, LookupError):
    """Raised if no job has the given name."""


class JobUnreachableError(FleetfitError):
    """Raised if the supervisor of a running job does not answer."""


class RecordError(FleetfitError):
    """Raised if a job's record cannot be read or written.

    Possible reasons are a full disk, missing permissions, and a record that was written by a newer version.
    """


class BackendError(FleetfitError):
    """Raised if a backend cannot run jobs on this machine, or could not start a job."""


class UnsupportedError(ConfigurationError):
    """Raised if a feature exists, but not with the selected backend or strategy."""


class PreflightWarning(UserWarning):
    """Warn before the start of a job that the job will run, but perhaps not as intended."""


def _message(job: Any, failure: Failure, *, tail: bool) -> str:
    """Return the exception's text. Control characters, such as those in the script's output, are removed."""
    from estimators.job.text import visible

    name = job if isinstance(job, str) else job.name
    parts = [f"training job {name!r} failed: {failure.summary()}"]
    parts += [f"hint: {hint}" for hint in failure.hints]
    if not isinstance(job, str):
        parts.append(f"logs: {job.record.hosts_dir}")
    if detail := failure.detail(tail=tail):
        parts += ["", detail]
    return visible("\n".join(parts))
