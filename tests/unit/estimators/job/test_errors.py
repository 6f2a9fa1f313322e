"""Errors: what they carry, and in which order they say it."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import pytest

from container.contract.failures import Cause, Failure
from estimators.client.training_job import TrainingJob
from estimators.job import errors
from estimators.records.record import JobRecord

FAILURE = Failure(
    cause=Cause.PROCESS, message="exited with code 3.", host="algo-2", process="rank 3", rank=3, exit_code=3,
    traceback="Traceback (most recent call last):\n  File …\nValueError: boom\n", hints=("look here", "and there"),
)  # fmt: skip


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    text = errors.__doc__ or ""
    classes = [item for item in vars(errors).values() if isinstance(item, type) and item.__module__ == errors.__name__]
    for item in [one for one in classes if not one.__name__.startswith("_")]:
        assert item.__name__ in text
        assert issubclass(item, errors.FleetfitError | Warning)


def test_the_users_traceback_comes_last() -> None:
    error = errors.TrainingJobError("job-1", FAILURE)
    shown = str(error).splitlines()
    assert shown[0] == "training job 'job-1' failed: algo-2, rank 3: exited with code 3."
    assert shown[1:3] == ["hint: look here", "hint: and there"]
    assert shown[-1] == "ValueError: boom"
    assert (error.host, error.rank, error.exit_code, error.signal) == ("algo-2", 3, 3, None)
    assert error.hints == ("look here", "and there") and "boom" in (error.traceback or "")


def test_the_last_lines_stand_in_for_a_traceback() -> None:
    failure = Failure(cause=Cause.PROCESS, message="was killed by SIGKILL.", log_tail="step 9")
    assert str(errors.TrainingJobError("j", failure)).endswith("the last lines that the process printed:\nstep 9")
    assert "step 9" not in str(errors.TrainingJobError("j", failure, tail=False)), "the user has seen it"


def test_it_pickles_with_its_job(tmp_path: Path) -> None:
    record = JobRecord.create("job-1", tmp_path)
    record.release()
    job = TrainingJob(record)
    error = pickle.loads(pickle.dumps(errors.TrainingJobError(job, FAILURE)))
    assert error.failure == FAILURE
    assert error.job.name == error.job_name == "job-1"
    assert str(tmp_path) in str(error)


@pytest.mark.parametrize(
    ("error", "base"),
    [
        (errors.ConfigurationError, ValueError),
        (errors.UnsupportedError, errors.ConfigurationError),
        (errors.JobNotFoundError, LookupError),
        (errors.PreflightWarning, UserWarning),
    ],
)
def test_python_can_catch_them_by_its_own_names(error: type[BaseException], base: type[BaseException]) -> None:
    assert issubclass(error, base)


def test_python_reports_an_uncaught_error_with_the_users_frames_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    for _ in range(2):
        errors.shorten_uncaught()
    ours = {"__name__": "estimators.ours", "error": errors.TrainingJobError("job-1", FAILURE)}
    told = KeyboardInterrupt("stopped")
    told._render_traceback_ = list  # type: ignore[attr-defined]
    for raised, shown, whole in (
        (ours["error"], "job 'job-1' failed", False),
        (errors.ArgumentNameError("unknown argument"), "unknown argument", False),
        (told, "", False),
        (KeyError("another"), "KeyError", True),
    ):
        try:
            exec(compile("raise error from ValueError('inner')", "<ours>", "exec"), ours | {"error": raised})
        except BaseException:  # noqa: BLE001 - an interrupt is one of them
            sys.excepthook(*sys.exc_info())
        said = capsys.readouterr().err
        assert shown in said and bool(said) == bool(shown)
        assert ("test_errors.py" in said) == bool(shown)
        assert ('File "<ours>"' in said and "ValueError: inner" in said) == whole


def test_also_among_the_causes_of_the_users_own_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    errors.shorten_uncaught()
    ours = {"__name__": "estimators.ours", "error": errors.BackendError("no engine")}
    theirs = {"__name__": "estimators.ours", "error": errors.with_users_frames_only(ZeroDivisionError("far"))}
    try:
        try:
            exec(compile("raise error", "<ours>", "exec"), ours)
        except errors.BackendError:
            exec(compile("raise error", "<ours>", "exec"), theirs)
    except ZeroDivisionError:
        sys.excepthook(*sys.exc_info())
    said = capsys.readouterr().err
    assert "BackendError: no engine" in said and "ZeroDivisionError: far" in said and 'File "<ours>"' not in said


def test_a_wrong_grace_is_refused(tmp_path: Path) -> None:
    record = JobRecord.create("job-1", tmp_path)
    record.release()
    with pytest.raises(errors.ConfigurationError, match=r"stop\(grace=…\) must be a number of seconds"):
        TrainingJob(record).stop(grace="5")  # type: ignore[arg-type]
