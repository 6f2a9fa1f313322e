"""Starting a job: claim its record, fill it, and hand it to a supervisor process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from container.contract.wire import Event
from estimators.errors import BackendError
from estimators.jobs import status as statuses
from estimators.jobs.client import Tie
from estimators.jobs.handle import TrainingJob
from estimators.jobs.record import JobRecord, explained, open_private

if TYPE_CHECKING:
    from estimators.source import Source
    from estimators.spec import RunOptions, TrainingJobSpec

#: The folder of our packages, for a supervisor that runs in another working directory.
_ROOT = str(Path(__file__).resolve().parents[2])

#: Not `-m`, which would look into the working directory first, and not the file, whose folder would come first.
_BOOT = """\
import sys
root = sys.argv.pop(1)
if sys.path and not sys.path[0]:
    del sys.path[0]
if root not in sys.path:
    sites = [n for n, p in enumerate(sys.path) if p.endswith(("site-packages", "dist-packages"))]
    sys.path.insert(sites[0] if sites else len(sys.path), root)
from estimators.jobs.supervisor import main
sys.exit(main(sys.argv[1:]))
"""

#: Supervisors that this process started and that may still run. They are kept so that they are reaped.
_supervisors: list[subprocess.Popen[bytes]] = []


def launch(
    spec: TrainingJobSpec,
    options: RunOptions,
    *,
    home: str | Path | None = None,
    attached: bool = True,
    source: Source | None = None,
) -> TrainingJob:
    """Start a job. Everything must have been checked before.

    Args:
        spec: What to run.
        options: How to run it.
        home: Instead of ``$FLEETFIT_HOME``.
        attached: Whether the job ends with this process.
        source: The user's code, of which a snapshot goes into the record.

    Returns:
        The job's handle. The supervisor has been started; whether the job comes up is seen by waiting.

    Raises:
        ConfigurationError: the name is not possible, or the source cannot be copied.
        JobExistsError: the name is taken.
        RecordError: the record cannot be written.
        BackendError: the supervisor cannot be started.
    """
    now = time.time()
    record = JobRecord.create(spec.name, home)
    ours: socket.socket | None = None
    process: subprocess.Popen[bytes] | None = None
    try:
        fill(record, spec, options, source, now)
        arguments = ["--record", str(record.path), "--lock-fd", str(record.lock_fd)]
        if attached:
            ours, theirs = socket.socketpair()
            with theirs:
                arguments += ["--attached-fd", str(theirs.fileno()), "--caller-pid", str(os.getpid())]
                process = _start(record, arguments, [theirs.fileno()])
        else:
            process = _start(record, arguments, [])
        record.release()
        return TrainingJob(record, tie=Tie(ours) if ours is not None else None, process=process)
    except BaseException:
        if ours is not None:
            ours.close()  # whatever has been started sees this and ends
        if process is None:
            record.discard()
        raise


def fill(record: JobRecord, spec: TrainingJobSpec, options: RunOptions, source: Source | None, now: float) -> None:
    """Write what a new record holds before anything runs: request, options, status, source, provenance.

    Raises:
        RecordError: it cannot be written.
        ConfigurationError: the source cannot be copied.
    """
    from estimators.provenance import caller_facts

    request = spec.to_request()
    record.write_request(request)
    record.write_options(options.to_dict())
    record.write_status(statuses.new_status(request, now, warnings=options.warnings))
    record.append_event(Event(kind="phase", host="caller", time_ns=int(now * 1e9), data={"name": "job_created"}))
    if source is not None:
        with explained(record.source_dir, "copy the source to"):
            source.copy_to(record.source_dir)
    code = source.roots[0][1] if source is not None and source.roots else None
    record.write_json(record.provenance_file, caller_facts(source=code))


def _start(record: JobRecord, arguments: list[str], descriptors: list[int]) -> subprocess.Popen[bytes]:
    if not sys.executable:
        raise BackendError("the supervisor cannot be started: sys.executable does not name a Python interpreter.")
    _supervisors[:] = [process for process in _supervisors if process.poll() is None]
    log = open_private(record.supervisor_log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", _BOOT, _ROOT, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            start_new_session=True,  # Ctrl-C in the caller's terminal is the caller's business
            pass_fds=[record.lock_fd, *descriptors] if record.lock_fd is not None else descriptors,
        )
    except OSError as error:
        raise BackendError(
            f"the supervisor of training job {record.name!r} cannot be started: {sys.executable}: {error.strerror}. "
            "Check that the Python that you run still exists, and that there is room for more processes."
        ) from error
    finally:
        os.close(log)
    _supervisors.append(process)
    return process
