"""Run a job's supervisor in a process of its own, which ``estimators.client.launch`` starts."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import time

from container.contract.failures import Cause, Failure
from container.system import processes
from container.system.asyncio_loop import AsyncioLoop
from container.system.holding import hold
from estimators.job.errors import RecordError
from estimators.job.log_redaction import mask_failure, text_mask
from estimators.records import status as statuses
from estimators.records.record import JobRecord
from estimators.supervisor import sharing
from estimators.supervisor.supervisor import Supervisor


def main(argv: list[str] | None = None) -> int:
    """Run a job's supervisor until the job and its record are complete.

    Returns:
        The exit code, which is always 0.
    """
    parser = argparse.ArgumentParser(prog="estimators.supervisor.main", description=__doc__)
    parser.add_argument("--record", required=True, help="folder of the job's record")
    parser.add_argument("--lock-fd", type=int, required=True, help="file descriptor that holds the lock of the record")
    parser.add_argument("--attached-fd", type=int, help="socket to the process that waits for the job")
    parser.add_argument("--caller-pid", type=int, help="pid of the process that starts the job")
    parser.add_argument("--resume", action="store_true", help="start a new attempt of the job in the record")
    arguments = parser.parse_args(argv)
    record = JobRecord.adopt(arguments.record, arguments.lock_fd)
    umask = os.umask(0o077)  # only the user may read the record
    processes.become_subreaper()
    loop = AsyncioLoop()
    supervisor: Supervisor | None = None
    try:
        if record.read_options().get("dispatcher"):
            from estimators.supervisor import dispatched

            dispatched.run(loop, record)
            _expect_dismissal()
            loop.close()
            _ignore_interrupts()
            _keep_what_is_left(record)
            return 0
        supervisor = Supervisor(loop, record, umask, resume=arguments.resume)
        supervisor.clients.listen(record.control_socket)
        if arguments.attached_fd is not None:
            supervisor.clients.attach(arguments.attached_fd, arguments.caller_pid or 0)
        loop.run(supervisor.run())
    except Exception:
        # The protected processes end by themselves after this process. Some of them then terminate rented machines.
        loop.end_descendants(spare=supervisor.protected if supervisor is not None else ())
        _record_fault(record)
        raise
    _expect_dismissal()
    hold("supervisor.lingers")
    try:
        loop.run(supervisor.linger())
        loop.close()
    finally:
        _ignore_interrupts()
        _keep_what_is_left(record)
    return 0


def _expect_dismissal() -> None:
    """Restore the default action of SIGTERM. A new supervisor that resumes the job can then terminate this process."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _ignore_interrupts() -> None:
    """Ignore SIGHUP and SIGINT, which the event loop has handled until now."""
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


def _keep_what_is_left(record: JobRecord) -> None:
    """Save the job's result, and replace the hosts' copies of the job's code by links. No caller waits for
    these steps.
    """
    from estimators.results import saving

    os.nice(19)
    saving.save(record)
    sharing.share_code(record)


def _record_fault(record: JobRecord) -> None:
    """Record an internal error of fleetfit as the job's failure, with the traceback."""
    import traceback

    failure = Failure(
        cause=Cause.INTERNAL,
        message=f"fleetfit's supervisor failed: {sys.exc_info()[1]!r}",
        traceback=traceback.format_exc(),
        hints=("This is a fault of fleetfit; please report it with the traceback.",),
    )
    now = time.time()
    with contextlib.suppress(RecordError, ValueError, OSError):
        if statuses.lives_elsewhere(record.stored_status()):
            return  # the job continues at its service
        request = record.read_request()
        status = record.stored_status() or statuses.new_status(request, now)
        failure = mask_failure(failure, text_mask(request))
        record.write_status(statuses.fail(status, failure, now))
