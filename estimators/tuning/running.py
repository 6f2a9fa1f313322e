"""Start, find, stop and await tuning jobs. One whose process was killed goes on where somebody waits for it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from container.contract import rules
from estimators.client import launch
from estimators.job.errors import BackendError, JobUnreachableError, UnsupportedError
from estimators.records.private_files import open_private
from estimators.records.record import JobRecord
from estimators.tuning.config import TuningSpec
from estimators.tuning.record import TuningRecord, is_terminal

#: How often a waiting caller looks, in seconds.
POLL_SECONDS = 0.1
#: A process that ends this soon, so many times, is not started again.
_SOON = 20.0
_TRIES = 3

#: Processes that this one started, kept so that they are reaped.
_processes: list[tuple[Path, subprocess.Popen[bytes]]] = []


def check_possible(spec: TuningSpec, home: str | Path | None = None) -> None:
    """Refuse to start a study without Optuna, or without the tuning jobs that it is to start with.

    Args:
        spec: What is searched.
        home: Instead of ``$FLEETFIT_HOME``.

    Raises:
        UnsupportedError: it is not installed.
        JobNotFoundError: a parent of the warm start does not exist.
    """
    from importlib.util import find_spec

    if find_spec("optuna") is None:
        raise UnsupportedError("tuning needs Optuna: `fleetfit install tuning`, or pip install optuna.")
    for parent in spec.warm_start.get("ParentHyperParameterTuningJobs", ()):
        TuningRecord.open(parent["HyperParameterTuningJobName"], home)


def create(
    spec: TuningSpec,
    fill: Callable[[JobRecord], None],
    *,
    estimator: str,
    request: Mapping[str, Any],
    home: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    own: Mapping[str, Any] | None = None,
) -> TuningRecord:
    """Put a tuning job on record and start its process.

    Args:
        spec: What is searched.
        fill: Fills the template that it is given.
        estimator: The class of the estimator, for :meth:`HyperparameterTuner.attach`.
        request: SageMaker's form of it all.
        home: Instead of ``$FLEETFIT_HOME``.
        env: The process's environment, which the trials inherit; default: this process's.
        own: What else its process has to know.

    Raises:
        ConfigurationError: the name is not possible.
        JobExistsError: the name is taken.
        RecordError: the record cannot be written.
        BackendError: the process cannot be started.
    """
    record = TuningRecord.stage(spec.name, home)
    now = time.time()
    try:
        record.write("tuning", {"version": 1, "spec": rules.to_dict(spec), "estimator": estimator})
        record.write("request", dict(request))
        record.write(
            "status",
            {
                "HyperParameterTuningJobName": spec.name,
                "HyperParameterTuningJobStatus": "InProgress",
                "CreationTime": now,
                "LastModifiedTime": now,
                "TrainingJobStatusCounters": dict.fromkeys(
                    ("Completed", "InProgress", "RetryableError", "NonRetryableError", "Stopped"), 0
                ),
                "ObjectiveStatusCounters": dict.fromkeys(("Succeeded", "Pending", "Failed"), 0),
                "Fleetfit": {"pid": None, **(own or {})},
            },
        )
        template = record.template
        try:
            fill(template)
        finally:
            template.release()
        record.publish(spec.name)
    except BaseException:
        record.discard()
        raise
    start(record, env)
    return record


def start(record: TuningRecord, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start the process of a tuning job; where one runs already, the new one ends at once.

    Raises:
        BackendError: it cannot be started.
    """
    command = [*launch.boot("estimators.tuning.process"), "--record", str(record.path)]
    _processes[:] = [(path, process) for path, process in _processes if process.poll() is None]
    log = open_private(record.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, cwd="/", start_new_session=True
        )
    except OSError as error:
        raise BackendError(f"the process of tuning job {record.name!r} cannot be started: {error.strerror}.") from error
    finally:
        os.close(log)
    _processes.append((record.path, process))
    return process


def ensure(record: TuningRecord, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes] | None:
    """Go on with a tuning job that is not over and that no process owns; returns the new process."""
    if is_terminal(record.status()) or record.is_supervised():
        return None
    return start(record, env)


def revive(record: TuningRecord, env: Mapping[str, str] | None = None) -> None:
    """Go on with a tuning job whose process was killed, but not at once with one that keeps ending; for who asks often.

    Raises:
        BackendError: it cannot be started.
    """
    if is_terminal(record.status()) or _comes_up(record) or record.is_supervised():
        return
    with contextlib.suppress(OSError):
        if time.time() - record.log.stat().st_mtime < _SOON and record.log.stat().st_size:
            return
    start(record, env)


def stop(record: TuningRecord, env: Mapping[str, str] | None = None) -> None:
    """Stop a tuning job: its trials are stopped, and it ends; does not wait. One that is over is left alone."""
    if not is_terminal(record.status()):
        record.ask_to_stop()
        ensure(record, env)


def wait(
    record: TuningRecord,
    changed: Callable[[], None] = lambda: None,
    timeout: float | None = None,
    env: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Wait until a tuning job is over.

    Args:
        record: Its record.
        changed: Called when there is something new on record.
        timeout: Seconds after which waiting is given up; the tuning job goes on.
        env: The environment of its process, where another one has to be started.

    Returns:
        Its status.

    Raises:
        JobUnreachableError: its process ends again and again.
        TimeoutError: it is not over after ``timeout`` seconds.
    """
    deadline = time.monotonic() + timeout if timeout is not None else None
    stamp: Any = None
    own: subprocess.Popen[bytes] | None = None
    started: list[float] = []
    while True:
        now = record.status()
        if now.get("LastModifiedTime") != stamp:
            stamp = now.get("LastModifiedTime")
            changed()
        if is_terminal(now):
            return now
        if (own is None or own.poll() is not None) and not _comes_up(record) and not record.is_supervised():
            started = [when for when in started if time.monotonic() - when < _SOON] + [time.monotonic()]
            if len(started) > _TRIES:
                raise JobUnreachableError(
                    f"the process of tuning job {record.name!r} keeps ending unexpectedly; its log is {record.log}:\n"
                    f"{record.log_tail()}"
                )
            own = ensure(record, env)
        if deadline is not None and time.monotonic() > deadline:
            raise TimeoutError(f"tuning job {record.name!r} is still {now.get('HyperParameterTuningJobStatus')}.")
        time.sleep(POLL_SECONDS)


def _comes_up(record: TuningRecord) -> bool:
    """Return whether a process that we started is on its way, and does not have the lock yet."""
    return any(process.poll() is None for path, process in _processes if path == record.path)
