"""Start a job: create and fill the job's record, and start the supervisor process, which runs the job."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from container.contract import rules, variables
from container.contract.failures import Cause, Failure
from container.contract.wire import Event
from container.system.holding import hold
from container.system.unused import read_proc_link
from estimators import backends
from estimators.backends import dispatchers
from estimators.client.checks import check_local
from estimators.client.ipc_client import Tie
from estimators.job.errors import BackendError, ConfigurationError, UnsupportedError
from estimators.job.failure_policy import EndedBy, Ending
from estimators.job.fleets import capabilities
from estimators.job.request import JobOptions, TrainingJobSpec
from estimators.records import status as statuses
from estimators.records.private_files import explained, open_private
from estimators.records.record import JobRecord

if TYPE_CHECKING:
    from estimators.client.source import Source

#: The folder that contains fleetfit's packages. The supervisor needs this path, because its working directory is `/`.
_ROOT = str(Path(__file__).resolve().parents[2])

#: Program that runs the `main()` of a module. `python -m` is not used, because it would search for modules in the
#: working directory first. `python FILE` would search in the file's folder first.
_BOOT = """\
import gc, signal, sys
signal.pthread_sigmask(signal.SIG_SETMASK, [])  # the caller may have blocked signals
gc.set_threshold(100_000)  # loading modules makes many objects and no garbage, and a job's start waits for it
root = sys.argv.pop(1)
if sys.path and not sys.path[0]:
    del sys.path[0]
if root not in sys.path:
    sites = [n for n, p in enumerate(sys.path) if p.endswith(("site-packages", "dist-packages"))]
    sys.path.insert(sites[0] if sites else len(sys.path), root)
import importlib
sys.exit(importlib.import_module(sys.argv.pop(1)).main(sys.argv[1:]))
"""

#: Maximum time to wait until the processes of an earlier supervisor have exited, in seconds. Processes usually take 2
#: s, and containers 5 s.
_LEFTOVERS = 15.0
#: Maximum time to wait for the supervisor of a job that has ended, in seconds. The supervisor may still be collecting
#: the provenance, which describes the origin of the job.
_LINGERING = 40.0

#: Supervisors that this process has started and that may still run. :func:`start` polls them, so that supervisors that
#: have exited do not stay as zombie processes.
_supervisors: list[subprocess.Popen[bytes]] = []


class StartedJob(NamedTuple):
    """A job whose supervisor has been started.

    Attributes:
        record: The job's record.
        tie: The connection that ties the job to this process, or None if the job continues without this process.
        process: The supervisor's process.
    """

    record: JobRecord
    tie: Tie | None
    process: subprocess.Popen[bytes]


def launch(
    spec: TrainingJobSpec,
    options: JobOptions,
    *,
    attached: bool = True,
    source: Source | None = None,
    env: Mapping[str, str] | None = None,
) -> StartedJob:
    """Start a job that has passed all checks.

    Args:
        spec: The job.
        options: The run options.
        attached: Whether the job stops when this process exits.
        source: The user's code, which is copied into the record.
        env: The supervisor's environment. The default is the environment of this process.

    Returns:
        The job. Its supervisor process has been started, but the hosts have not, and may still fail to start.

    Raises:
        ConfigurationError: the name is not allowed, or the source cannot be copied.
        JobExistsError: a job with this name exists.
        RecordError: the record cannot be written.
        BackendError: the supervisor cannot be started.
    """
    now = time.time()
    options = pinned(options)
    record = JobRecord.stage(spec.name)
    try:
        fill(record, spec, options, source, now)
        if options.dispatcher is None:
            hand_over(record, spec, options)
        record.publish(spec.name)  # only now, so that a killed process leaves no incomplete record under this name
        hold("launch.before_supervisor")
        return _started(record, env, attached=attached)
    except BaseException:
        if record.lock_fd is not None:  # no supervisor holds the lock
            record.discard()
        raise


def _started(
    record: JobRecord, env: Mapping[str, str] | None = None, *, attached: bool, resumed: bool = False
) -> StartedJob:
    """Start a supervisor for a new or resumed job whose record has been written.

    With ``attached=True``, the job is stopped when this process ends.
    """
    if not attached:
        return StartedJob(record, None, start(record, env, resumed=resumed))
    ours, theirs = socket.socketpair()
    try:
        with theirs:
            process = start(record, env, (theirs, os.getpid()), resumed=resumed)
    except BaseException:
        ours.close()  # a supervisor that was started notices the closed connection, and exits
        raise
    return StartedJob(record, Tie(ours), process)


def pinned(options: JobOptions) -> JobOptions:
    """Return run options that contain the dispatcher's address.

    A later process then finds the same dispatcher, even if its environment variables name a different dispatcher.
    """
    if options.dispatcher is None:
        return options
    reached = dispatchers.load(options.dispatcher).pinned(options.dispatcher_options)
    return dataclasses.replace(options, dispatcher_options=reached)


def resume(record: JobRecord, *, attached: bool = True) -> StartedJob:
    """Start another attempt of a job that failed, was stopped, or lost its supervisor.

    The attempt uses the same record. If the job has a checkpoint, the script continues from the last checkpoint.

    Args:
        record: The job's record.
        attached: Whether the job stops when this process exits.

    Returns:
        The restarted job.

    Raises:
        ConfigurationError: the job is running, or has completed.
        UnsupportedError: the job's backend or dispatcher cannot resume the job from this machine.
        RecordError: the record cannot be written.
        BackendError: the supervisor cannot be started, or processes of the job do not exit.
    """
    from estimators.results import saving

    _check_resumable(record, record.read_status())
    spec = TrainingJobSpec.from_request(record.read_request())
    options = JobOptions.from_dict(record.read_options())
    if capabilities(spec.instance_type).managed:
        raise UnsupportedError(
            f"training job {record.name!r} ran on SageMaker, which cannot resume a job. Start a new job with the "
            "same checkpoint_s3_uri: the script then resumes from its last checkpoint."
        )
    if options.dispatcher is not None:
        raise UnsupportedError(
            f"training job {record.name!r} was run by the dispatcher {options.dispatcher}. To resume the job, log in "
            f"to that machine and run `fleetfit resume {record.name}`, or start a new job with the same checkpoints."
        )
    check_local(spec)
    backends.load(options.backend).check(spec, options)
    _take_over(record)
    try:
        await_leftovers(record)
        stored = record.stored_status()
        _check_resumable(record, stored or {})
        if stored is None:
            raise ConfigurationError(f"training job {record.name!r} never started: start a new job with fit().")
        record.write_status(_resumed(stored, time.time(), record.last_sign()))
        (record.path / saving.FILE).unlink(missing_ok=True)  # the saved result of the earlier attempts
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(record.copies_dir)  # the outputs of the earlier attempts
        hand_over(record, spec, options)
        return _started(record, attached=attached, resumed=True)
    finally:
        record.release()


def _take_over(record: JobRecord) -> None:
    """Acquire the lock of an ended job's record. If the job's supervisor still holds the lock, end the supervisor.

    After the job's end, the supervisor holds the lock while it collects the provenance, which describes the origin of
    the job.

    Raises:
        ConfigurationError: another process is resuming the job, or the job cannot be resumed.
    """
    until = time.monotonic() + _LINGERING
    while not record.lock():
        status = record.read_status()
        _check_resumable(record, status)
        _dismiss(record, status)
        if time.monotonic() > until:
            raise ConfigurationError(f"training job {record.name!r} is being resumed by another process.")
        time.sleep(0.02)


def _dismiss(record: JobRecord, status: Mapping[str, Any]) -> None:
    """Terminate the supervisor of a job that has ended.

    The supervisor may still be collecting the provenance, which describes the origin of the job. :func:`resume` does
    not wait until the supervisor has finished.
    """
    pid = status.get(statuses.OWN, {}).get("supervisor_pid")
    with contextlib.suppress(OSError, TypeError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if b"estimators.supervisor.main" in words and os.fsencode(record.path) in words:
            os.kill(pid, signal.SIGTERM)


def hand_over(record: JobRecord, spec: TrainingJobSpec, options: JobOptions) -> None:
    """Write what the backend's check of a job has found to the job's record.

    The supervisor reads these results from the record, and need not determine them a second time. If the backend has no
    results, remove earlier results from the record.
    """
    found = backends.load(options.backend).found(spec)
    if found is None:
        record.found_file.unlink(missing_ok=True)
    else:
        record.write_json(record.found_file, found)


def _check_resumable(record: JobRecord, status: Mapping[str, Any]) -> None:
    if status.get("TrainingJobStatus") == "Completed":
        raise ConfigurationError(f"training job {record.name!r} has completed: there is nothing to resume.")
    if record.lock_fd is None and not statuses.is_terminal(status):
        raise ConfigurationError(
            f"training job {record.name!r} is {status.get('TrainingJobStatus')}: only a job that failed, was stopped "
            f"or lost its supervisor can be resumed. To wait for the end of the job, run `fleetfit wait {record.name}`."
        )


def _resumed(stored: dict[str, Any], now: float, last_sign: float) -> dict[str, Any]:
    own = stored.get(statuses.OWN, {})
    attempt = int(own.get("attempt") or 0)
    endings = list(own.get("attempts") or [])
    if not any(values.get("attempt") == attempt for values in endings):
        # The record does not contain the end of the last attempt, because the job was stopped or its supervisor was
        # lost.
        failure = Failure(cause=Cause.INTERNAL, message="the supervisor was lost.")
        if statuses.is_terminal(stored):
            failure = statuses.failure_of(stored) or Failure(
                cause=Cause.TIMEOUT, message=f"the job was stopped ({stored.get('SecondaryStatus')})."
            )
        endings.append(Ending(attempt=attempt, kind=EndedBy.FAILURE, failure=failure).to_dict())
    status = statuses.resumed(stored, now, attempt=attempt + 1, last_sign=last_sign)
    return statuses.with_own(status, attempts=endings, supervisor_pid=None)


def await_leftovers(record: JobRecord) -> None:
    """Wait until no process of a job's earlier supervisor is running. The processes exit by themselves.

    Raises:
        BackendError: the processes do not exit in time.
    """
    until = time.monotonic() + _LEFTOVERS
    while left := _leftovers(record.path):
        if time.monotonic() > until:
            raise BackendError(
                f"processes of training job {record.name!r} are still running, although its supervisor has ended: "
                f"{', '.join(map(str, sorted(left)))}. End these processes first."
            )
        time.sleep(0.02)


def _leftovers(path: Path) -> list[int]:
    """Return the PIDs of processes that a job's earlier supervisor started and that still run.

    These are the ranks, the hosts' toolkits (which start the ranks), the hosts' agents (which prepare the data), and
    the process that removes hosts. Each process is found by the record's folder in its environment or command. Ranks
    that are forked from an importer, which imports modules once for all ranks, have the importer's environment. Such
    ranks are found by their working directory.
    """
    ours = f"{variables.BASE_DIR}={path}/".encode()
    name = str(path).encode() + b"\0"
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            environ = Path(f"/proc/{entry}/environ").read_bytes()
            argv = Path(f"/proc/{entry}/cmdline").read_bytes()
        except OSError:
            continue
        helper = b"container/__main__.py" in argv or b"hosts/remover.py" in argv
        works_there = read_proc_link(int(entry), "cwd").startswith(f"{path}/")
        forked = works_there and f"{variables.IMPORTER}=".encode() in environ
        if ours in environ or forked or (helper and name in argv):
            found.append(int(entry))
    return found


def begin_record(record: JobRecord, spec: TrainingJobSpec, options: JobOptions, now: float) -> None:
    """Write the request, the options and the first status of a new job to the job's record.

    Raises:
        RecordError: the record cannot be written.
    """
    request = spec.to_request()
    record.write_request(request)
    record.write_options(rules.to_dict(options))
    record.write_status(statuses.new_status(request, now, warnings=options.warnings))
    record.append_event(Event(kind="phase", host="caller", time_ns=int(now * 1e9), data={"name": "job_created"}))


def fill(record: JobRecord, spec: TrainingJobSpec, options: JobOptions, source: Source | None, now: float) -> None:
    """Write the initial content of a new record: the request, the options, the status, the source and the provenance.

    Raises:
        RecordError: the record cannot be written.
        ConfigurationError: the source cannot be copied.
    """
    from estimators.records.provenance import caller_facts

    begin_record(record, spec, options, now)
    if source is not None:
        with explained(record.source_dir, "copy the source to"):
            source.copy_to(record.source_dir)
    code = source.roots[0][1] if source is not None and source.roots else None
    record.write_json(record.provenance_file, caller_facts(source=code))


def start(
    record: JobRecord,
    env: Mapping[str, str] | None = None,
    tied: tuple[socket.socket, int] | None = None,
    *,
    resumed: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a supervisor for a job whose record has been written. This process must hold the record's lock.

    Args:
        record: The record. The supervisor takes over the record's lock.
        env: The supervisor's environment, which the job's hosts inherit. The default is the environment of this
            process.
        tied: A pair if a process waits for the job: the supervisor's end of a socket connection to the waiting process,
            and the PID of the waiting process. The supervisor stops the job when the waiting process ends. None if no
            process waits.
        resumed: Whether the job continues after earlier attempts.

    Raises:
        BackendError: the supervisor cannot be started.
    """
    arguments = ["--record", str(record.path), "--lock-fd", str(record.lock_fd)]
    arguments += ["--resume"] if resumed else []
    descriptors = []
    if tied is not None:
        theirs, pid = tied
        arguments += ["--attached-fd", str(theirs.fileno()), "--caller-pid", str(pid)]
        descriptors.append(theirs.fileno())
    command = boot("estimators.supervisor.main")
    _supervisors[:] = [process for process in _supervisors if process.poll() is None]
    log = open_private(record.supervisor_log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        process = subprocess.Popen(
            [*command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=env,
            cwd="/",
            start_new_session=True,  # Ctrl-C in the caller's terminal is only for the caller
            pass_fds=[record.lock_fd, *descriptors] if record.lock_fd is not None else descriptors,
        )
    except OSError as error:
        raise BackendError(
            f"the supervisor of training job {record.name!r} cannot be started: {sys.executable}: {error.strerror}. "
            "Check that this Python interpreter still exists, and that more processes and open files are allowed "
            "(`ulimit -u`, `ulimit -n`)."
        ) from error
    finally:
        os.close(log)
    _supervisors.append(process)
    record.release()
    return process


def boot(module: str) -> list[str]:
    """Return the command that runs a module's ``main()`` in a new process, independent of the working directory.

    Raises:
        BackendError: ``sys.executable`` is unknown.
    """
    if not sys.executable:
        raise BackendError("no process can be started: sys.executable does not name a Python interpreter.")
    return [sys.executable, "-c", _BOOT, _ROOT, module]
