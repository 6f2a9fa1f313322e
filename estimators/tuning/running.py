"""Start and stop tuning jobs, and wait for them. If a tuning job's process is killed, a waiting caller restarts the
process.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from container.contract import rules
from estimators.client import launch
from estimators.job.errors import BackendError, JobUnreachableError, UnsupportedError
from estimators.records.private_files import open_private, tail
from estimators.records.record import JobRecord
from estimators.tuning.config import TuningSpec
from estimators.tuning.record import TuningRecord, is_terminal

#: The interval at which a waiting caller polls, in seconds.
POLL_SECONDS = 0.1
#: A waiting caller starts a tuning job's process at most :data:`_TRIES` times within this many seconds.
_SOON = 20.0
_TRIES = 3

#: The processes of tuning jobs that this process has started. The references are kept so that the processes are reaped
#: when they end.
_processes: list[tuple[Path, subprocess.Popen[bytes]]] = []


def check_possible(spec: TuningSpec, home: str | Path | None = None) -> None:
    """Raise an error if Optuna or a parent of the warm start is missing.

    Args:
        spec: The spec of the search.
        home: The folder to use instead of ``$FLEETFIT_HOME``.

    Raises:
        UnsupportedError: Optuna is not installed.
        JobNotFoundError: a parent of the warm start does not exist.
    """
    from importlib.util import find_spec

    if find_spec("optuna") is None:
        raise UnsupportedError("tuning needs Optuna: `fleetfit install tuning`, or pip install optuna.")
    for parent in spec.warm_start.get("ParentHyperParameterTuningJobs", ()):
        TuningRecord.open(parent["HyperParameterTuningJobName"], home)


@contextlib.contextmanager
def creating(
    spec: TuningSpec,
    *,
    estimator: str,
    request: Mapping[str, Any],
    home: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    own: Mapping[str, Any] | None = None,
) -> Iterator[JobRecord]:
    """Create the record of a tuning job, and start its process at the end of the ``with`` block.

    If the block raises an error, the record is removed.

    Args:
        spec: The spec of the search.
        estimator: The name of the estimator's class, for :meth:`HyperparameterTuner.attach`.
        request: The tuning job as a CreateHyperParameterTuningJob request.
        home: The folder to use instead of ``$FLEETFIT_HOME``.
        env: The environment of the tuning job's process, which the trials inherit. None to use this process's
            environment.
        own: Additional values for the tuning job's process. They are stored in the status under ``Fleetfit``.

    Yields:
        The empty template: the record from which the records of the trials' jobs are made. The block fills it.

    Raises:
        ConfigurationError: the name is not valid.
        JobExistsError: the name is already used.
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
        try:
            yield record.template
        finally:
            record.template.release()
        published = record.publish(spec.name)
    except BaseException:
        record.discard()
        raise
    start(published, env)


def start(record: TuningRecord, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start the process of a tuning job. If a process already runs the tuning job, the new process exits at once.

    Raises:
        BackendError: the process cannot be started.
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
    """Restart the process of a tuning job if the tuning job has not ended and its process is not running.

    Returns:
        The new process, or None.
    """
    if is_terminal(record.status()) or record.is_supervised():
        return None
    return start(record, env)


def revive(record: TuningRecord, env: Mapping[str, str] | None = None) -> None:
    """Restart a tuning job's killed process, but not if the process has written into its log in the last 20 seconds.

    Because of this limit, a process that ends repeatedly is not restarted too often, even if this function is called
    often.

    Raises:
        BackendError: the process cannot be started.
    """
    if is_terminal(record.status()) or _comes_up(record) or record.is_supervised():
        return
    with contextlib.suppress(OSError):
        if time.time() - record.log.stat().st_mtime < _SOON and record.log.stat().st_size:
            return
    start(record, env)


def stop(record: TuningRecord, env: Mapping[str, str] | None = None) -> None:
    """Request that a tuning job and its trials stop, and return at once. Do nothing if the tuning job has ended.

    If the tuning job's process is not running, restart it, so that it carries out the request.
    """
    if not is_terminal(record.status()):
        record.ask_to_stop()
        ensure(record, env)


def follow(record: TuningRecord, timeout: float | None = None, env: Mapping[str, str] | None = None) -> Iterator[None]:
    """Yield once at the start and then after each change of a tuning job's status, until the tuning job has ended.

    If the tuning job's process was killed, restart the process.

    Args:
        record: The tuning job's record.
        timeout: The number of seconds after which to stop waiting. The tuning job then continues. None for no limit.
        env: The environment of the tuning job's process if the process has to be restarted.

    Raises:
        JobUnreachableError: the tuning job's process ends repeatedly.
        TimeoutError: the tuning job has not ended after ``timeout`` seconds.
    """
    deadline = time.monotonic() + timeout if timeout is not None else None
    stamp: Any = ()
    own: subprocess.Popen[bytes] | None = None
    started: list[float] = []
    while True:
        now = record.status()
        if now.get("LastModifiedTime") != stamp:
            stamp = now.get("LastModifiedTime")
            yield
        if is_terminal(now):
            return
        if (own is None or own.poll() is not None) and not _comes_up(record) and not record.is_supervised():
            started = [when for when in started if time.monotonic() - when < _SOON] + [time.monotonic()]
            if len(started) > _TRIES:
                raise JobUnreachableError(
                    f"the process of tuning job {record.name!r} keeps ending unexpectedly; its log is {record.log}:\n"
                    f"{tail(record.log)[-2000:].strip()}"
                )
            own = ensure(record, env)
        if deadline is not None and time.monotonic() > deadline:
            raise TimeoutError(f"tuning job {record.name!r} is still {now.get('HyperParameterTuningJobStatus')}.")
        time.sleep(POLL_SECONDS)


def _comes_up(record: TuningRecord) -> bool:
    """Return whether a process that this process has started for the tuning job is still running.

    The started process may not hold the record's lock yet.
    """
    return any(process.poll() is None for path, process in _processes if path == record.path)
