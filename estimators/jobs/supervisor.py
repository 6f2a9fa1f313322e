"""The supervisor: the process that owns a running job and alone writes its record.

Notebook, command line and endpoint are its clients. ``--attached-fd`` ties it to a caller that waits: it pokes the
caller when there is something to read, and ends the job when the caller goes away. Whatever happens to it, nothing of
the job survives: its hosts notice the end of their lifeline.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from container.contract import wire
from container.contract.failures import Cause, Failure
from container.supervision import processes
from container.supervision.loop import Loop, Timer
from estimators import backends, metrics, ranks
from estimators.backends import local
from estimators.backends.base import Backend, Callbacks, HostEnd
from estimators.errors import RecordError
from estimators.jobs import channel
from estimators.jobs import status as statuses
from estimators.jobs.record import JobRecord
from estimators.jobs.states import SecondaryStatus
from estimators.logs import LogWriter
from estimators.spec import RunOptions, TrainingJobSpec

#: How long after the job's start provenance is collected, in seconds: a launch should have the cores to itself.
_PROVENANCE_DELAY = 1.0
#: How long the supervisor stays for the provenance collector after the job's end, in seconds.
_PROVENANCE_TIMEOUT = 30.0
#: The same when its caller was killed: then nothing may be left two seconds later.
_ABANDONED_TIMEOUT = 1.0
#: Toolkits show every five seconds that they are alive; a shorter silence than this means nothing, in seconds.
_LEAST_SILENCE = 20.0
#: The backend whose hosts do so: any image may run on others.
_BEATING = "local_process"
#: How long the other hosts have after one was lost, in seconds.
_LOST_GRACE = 0.3
#: How often a job is started when its servers find their ports taken.
_PORT_ATTEMPTS = 3
#: How long the hosts have to end after one failed before they are killed, in seconds. Theirs is 0.5 s.
_END_TIMEOUT = 1.5
#: How long packing the outputs may take of a job whose time to save is over, in seconds.
_COLLECT_TIMEOUT = 10.0


class Supervisor:
    """Runs one job to its end.

    Args:
        loop: The loop that drives everything.
        record: The job's record, its lock held.
        umask: The caller's umask, for what scripts write.
    """

    def __init__(self, loop: Loop, record: JobRecord, umask: int = 0o022) -> None:
        self._loop = loop
        self._record = record
        request = record.read_request()
        self._spec = TrainingJobSpec.from_request(request)
        self._options = RunOptions.from_json(record.options_file.read_text(encoding="utf-8"))
        self._status = record.stored_status() or statuses.new_status(
            request, time.time(), warnings=self._options.warnings
        )
        self._status = statuses.with_own(self._status, supervisor_pid=os.getpid())
        self._writer = LogWriter(record)
        self._extractor = metrics.MetricExtractor(
            metrics.parse_metric_definitions(
                [{"Name": item.name, "Regex": item.regex} for item in self._spec.algorithm.metric_definitions]
            ),
            ranks.numbering(self._spec),
        )
        self._buffers: dict[str, bytearray] = {}
        self._ended_hosts: dict[str, HostEnd] = {}
        self._reported: Failure | None = None  # by a host's toolkit
        self._model: str | None = None  # where it was put
        self._failure: Failure | None = None
        self._stopping: SecondaryStatus | None = None
        self._stop_message = ""
        self._ending = False
        self._hurry = False
        self._news = False
        self._heard: dict[str, float] = {}
        self._told_to_stop = False
        self._linger = _PROVENANCE_TIMEOUT
        self._over = False
        self._timers: list[Timer] = []
        self._end_timers: list[Timer] = []  # of this attempt
        self._final_metrics = metrics.FinalMetrics()
        self._provenance: int | None = None  # the collector's pid
        self._provenance_timer: Timer | None = None
        self._attached: channel.Attachment | None = None
        backend = backends.load(self._options.backend)
        self._backend: Backend = backend(
            loop,
            record,
            self._spec,
            self._options,
            Callbacks(
                secondary_status=self._secondary,
                output=self._output,
                host_ended=self._host_ended,
                failed=self._fail,
                outputs_collected=self._collected,
            ),
        )
        self._backend.umask = umask
        loop.idle = self._idle
        loop.on_signal(signal.SIGTERM, lambda: self.stop(None, "the supervisor got SIGTERM"))
        loop.on_signal(signal.SIGHUP, lambda: None)
        loop.on_signal(signal.SIGINT, lambda: None)

    # --- clients ---

    def attach(self, fd: int, caller: int) -> None:
        """Tie the job to a caller that waits."""
        self._attached = channel.Attachment(self._loop, fd, caller, self._request, self._caller_gone)

    def listen(self) -> None:
        """Take requests of other processes."""
        self._server = channel.ControlSocket(self._loop, self._record.control_socket, self._request)

    def _request(self, message: dict[str, Any]) -> dict[str, Any]:
        operation = message.get("op")
        if operation == "ping":
            return {"ok": True}
        if operation == "stop":
            grace = message.get("grace")
            if grace is not None and (isinstance(grace, bool) or not isinstance(grace, int | float) or not grace >= 0):
                return {"ok": False, "error": f"grace must be seconds, 0 or more, or null; got {grace!r}."}
            self.stop(grace, str(message.get("reason") or "a client asked for it"))
            return {"ok": True}
        return {"ok": False, "error": f"unknown operation {operation!r}; allowed: 'ping', 'stop'."}

    def _caller_gone(self) -> None:
        """The caller that waited is gone: nobody wants the job any more."""
        if not self._over:
            self._linger = _ABANDONED_TIMEOUT
            self._stop_as(SecondaryStatus.STOPPED, "The caller that waited for the job went away.")
            self._end_now()

    # --- the course of the job ---

    def start(self) -> None:
        """Start the job."""
        self._write_status()
        self._event("phase", name="supervisor_started")
        self._backend.start(0)
        if not self._ending:
            self._provenance_timer = self._loop.call_later(_PROVENANCE_DELAY, self._collect_provenance)
            self._watch_hosts()

    def _watch_hosts(self) -> None:
        """A toolkit that shows no sign of life was stopped, or its machine is out of breath: nobody waits for ever."""
        limit = max(self._options.start_timeout, _LEAST_SILENCE)
        now = time.monotonic()
        silent = [host for host, heard in self._heard.items() if host not in self._ended_hosts and now - heard > limit]
        if silent and self._failure is None and self._options.backend == _BEATING:
            self._fail(
                Failure(
                    cause=Cause.TIMEOUT,
                    message=f"the host's training process has given no sign of life for {limit:g} s.",
                    host=silent[0],
                    process="toolkit",
                    hints=("It was stopped (SIGSTOP), or the machine is overloaded.",),
                )
            )
        self._loop.call_later(min(limit / 4, 5.0), self._watch_hosts)

    def run(self) -> None:
        """Run until the job is over and its record complete."""
        while not self._over:
            self._loop.run_once()

    def stop(self, grace: float | None, reason: str) -> None:
        """Stop the job, giving the script ``grace`` seconds to save (None: what the options say)."""
        if self._over:
            return
        self._stop_as(SecondaryStatus.STOPPED, f"Stopped: {reason}.")
        self._stop_within(self._options.stop_grace if grace is None else grace)

    def _stop_within(self, seconds: float) -> None:
        collecting = len(self._ended_hosts) == len(self._spec.hosts)
        if seconds <= 0 or not (self._backend.running or collecting):
            self._end_now()
            return
        if not self._told_to_stop:  # to be told twice would end them at once
            self._told_to_stop = True
            self._backend.stop()
        self._timers.append(self._loop.call_later(seconds, self._grace_over))

    def _grace_over(self) -> None:
        """The script had its time: end it, and keep what it has saved."""
        if self._over:
            return
        if self._backend.running:
            self._backend.end_now()
        self._timers.append(self._loop.call_later(_COLLECT_TIMEOUT, self._end_now))

    def _stop_as(self, final: SecondaryStatus, message: str) -> None:
        if self._stopping is None and not self._ending:
            self._stopping = final
            self._stop_message = message
            self._secondary(SecondaryStatus.STOPPING.value, message)

    def _max_run_reached(self) -> None:
        seconds = self._spec.stopping.max_run_s
        self._stop_as(SecondaryStatus.MAX_RUNTIME_EXCEEDED, f"The job ran for max_run, {seconds} s, and was stopped.")
        self._stop_within(self._options.stop_grace)

    def _end_now(self) -> None:
        if self._over:
            return
        self._hurry = True
        running = self._backend.running
        self._backend.end_now()
        if not running:
            self._finish()  # it had not come to starting hosts, or they have all ended

    def _fail(self, failure: Failure) -> None:
        """The job cannot go on."""
        if self._failure is None:
            self._failure = failure
        self._ending = True
        running = self._backend.running
        self._backend.end_now()
        if not running:
            self._finish()

    # --- hosts ---

    def _output(self, host: str, data: bytes) -> None:
        self._heard[host] = time.monotonic()
        buffer = self._buffers.setdefault(host, bytearray())
        buffer += data
        self._lines(host, wire.split_pieces(buffer, limit=wire.LINE_LIMIT))

    def _lines(self, host: str, lines: list[bytes]) -> None:
        now = time.time_ns()
        events: list[wire.Event] = []
        for line in lines:
            if line == wire.HEARTBEAT:
                continue
            item = wire.decode_line(line)
            if isinstance(item, wire.Event):
                events.append(item)
                if item.kind == "failure" and self._reported is None:
                    self._reported = Failure.from_dict(item.data)
                elif item.kind == "warning":
                    self._warn(item, now)
                elif item.kind == "artifacts" and len(self._ended_hosts) == len(self._spec.hosts):
                    self._model = str(item.data.get("model") or "") or None
                continue
            piece = item if isinstance(item, wire.Piece) else wire.Piece(host, None, item)
            self._writer.write(piece, now)
            events += self._extractor.feed(piece, time_ns=now, attempt=self._writer.attempt)
        self._record_events(events)

    def _warn(self, event: wire.Event, now: int) -> None:
        """A host's warning is kept with the status and shown among the logs."""
        message = str(event.data.get("message") or "")
        if message:
            self._status = statuses.with_warning(self._status, message)
            self._writer.write(wire.Piece(event.host, None, f"warning: {message}\n".encode()), now)

    def _host_ended(self, end: HostEnd) -> None:
        buffer = self._buffers.setdefault(end.host, bytearray())
        self._lines(end.host, wire.split_pieces(buffer, final=True, limit=wire.LINE_LIMIT))
        self._ended_hosts[end.host] = end
        if end.failure is not None and (self._failure is None or self._failure.cause is Cause.HOST_LOST):
            self._failure = end.failure
            # A killed toolkit ends nothing any more, and one that has not met the others is not missed by them.
            self._end_timers.append(self._loop.call_later(_LOST_GRACE, self._backend.end_now))
        if len(self._ended_hosts) == len(self._spec.hosts):
            self._all_hosts_ended()
        elif end.exit_code != 0 and self._stopping is None:
            # The others end by themselves, since the hosts are connected; this bounds it.
            self._end_timers.append(self._loop.call_later(_END_TIMEOUT, self._backend.end_now))

    def _all_hosts_ended(self) -> None:
        failed = any(end.exit_code != 0 for end in self._ended_hosts.values())
        if self._stopping is None and failed and self._failure is None:
            self._failure = self._reported or self._unexplained()
        if self._failure is not None and self._may_start_again(self._failure):
            self._start_again(self._failure)
            return
        if self._hurry:
            self._finish()
            return
        if self._failure is not None and self._stopping is None:
            self._backend.save_checkpoints(self._checkpoints_saved)
            return
        if self._stopping is None:
            self._secondary(SecondaryStatus.UPLOADING.value, "")
        self._backend.collect_outputs()

    def _may_start_again(self, failure: Failure) -> bool:
        return (
            failure.cause is Cause.PORT_TAKEN and self._stopping is None and self._writer.attempt + 1 < _PORT_ATTEMPTS
        )

    def _start_again(self, failure: Failure) -> None:
        """Another attempt, with other ports and a new rendezvous."""
        attempt = self._writer.attempt + 1
        self._event("restart", reason=failure.summary())
        self._secondary(SecondaryStatus.RESTARTING.value, failure.summary())
        for timer in self._end_timers:
            timer.cancel()
        self._writer.start_attempt(attempt)
        self._status = statuses.with_own(self._status, attempt=attempt)
        self._buffers.clear()
        self._heard.clear()
        self._ended_hosts.clear()
        self._reported = self._failure = None
        self._backend.start(attempt)

    def _unexplained(self) -> Failure:
        host, end = next((host, end) for host, end in self._ended_hosts.items() if end.exit_code != 0)
        message = f"the host's training process exited with code {end.exit_code} without saying why."
        if end.exit_code == 128 + signal.SIGTERM:
            message = "somebody told the job's processes to stop (SIGTERM); the script had its time to save."
        return Failure(
            cause=Cause.PROCESS,
            message=message,
            host=host,
            exit_code=end.exit_code,
            signal=end.signal,
        )

    def _checkpoints_saved(self, failure: Failure | None) -> None:
        if failure is not None:
            self._status = statuses.with_warning(self._status, failure.message)
        self._finish()

    def _collected(self, failure: Failure | None) -> None:
        if failure is not None and self._stopping is None:
            self._failure = self._failure or failure
        elif failure is not None:
            self._status = statuses.with_warning(self._status, failure.message)
        self._finish()

    # --- the end ---

    def _finish(self) -> None:
        """Everything of the job has ended: write the last status and let the caller go."""
        if self._over:
            return
        self._over = True
        self._ending = True
        for timer in (*self._timers, *self._end_timers):
            timer.cancel()
        self._backend.protected = {self._provenance} if self._provenance is not None else set()
        self._loop.end_descendants(spare=self._backend.protected)
        self._backend.cleanup()
        self._record_events(self._extractor.finish(time_ns=time.time_ns(), attempt=self._writer.attempt))
        self._event("phase", name="job_ended")
        with contextlib.suppress(RecordError):
            self._writer.close()
        archive = self._model or _archive(self._spec)
        if archive is not None:
            self._status["ModelArtifacts"] = {"S3ModelArtifacts": archive}
        final = self._final_metrics.to_list()
        if final:
            self._status["FinalMetricDataList"] = final
        now = time.time()
        if self._stopping is not None:
            self._status = statuses.transition(self._status, self._stopping, now, self._stop_message)
        elif self._failure is not None:
            self._status = statuses.fail(self._status, self._failure, now)
        else:
            self._status = statuses.transition(self._status, SecondaryStatus.COMPLETED, now)
        self._write_status(last=True)
        if self._attached is not None:
            self._attached.close()
        self._server.close()

    def linger(self) -> None:
        """Wait, bounded, for the provenance collector; the caller has its result already."""
        if self._provenance_timer is not None:
            self._collect_provenance()
        until = time.monotonic() + self._linger
        while self._provenance is not None and time.monotonic() < until:
            self._loop.run_once(until - time.monotonic())
        self._loop.end_descendants()
        if self._linger == _PROVENANCE_TIMEOUT:
            _tidy()

    # --- the record ---

    def _secondary(self, name: str, message: str) -> None:
        """Take a step of the secondary status, unless the job is being stopped or over."""
        secondary = SecondaryStatus(name)
        if self._over or (self._stopping is not None and secondary is not SecondaryStatus.STOPPING):
            return
        self._status = statuses.transition(self._status, secondary, time.time(), message)
        self._write_status()
        if secondary is SecondaryStatus.TRAINING and self._spec.stopping.max_run_s and not self._timers:
            # As on SageMaker, the time that it takes to bring the inputs does not count.
            self._timers.append(self._loop.call_later(self._spec.stopping.max_run_s, self._max_run_reached))

    def _write_status(self, *, last: bool = False) -> None:
        try:
            self._record.write_status(self._status)
        except RecordError as error:
            if last:
                print(f"fleetfit: the last status could not be written: {error}", file=sys.stderr)
            else:
                self._record_failed(error)
        self._poke()

    def _event(self, kind: str, **data: Any) -> None:
        self._record_events([wire.Event(kind=kind, host="supervisor", attempt=self._writer.attempt, data=data)])

    def _record_events(self, events: list[wire.Event]) -> None:
        if not events:
            return
        self._news = True
        for event in events:
            self._final_metrics.add(event)
        try:
            self._record.append_events(events)
        except RecordError as error:
            self._record_failed(error)

    def _record_failed(self, error: RecordError) -> None:
        """A job that cannot be recorded is ended: going on would lose what it says."""
        if not self._over and self._failure is None:
            self._loop.call_later(
                0.0,
                lambda: self._fail(
                    Failure(
                        cause=Cause.CONFIGURATION,
                        message=str(error),
                        hints=("`fleetfit clean` frees what old jobs and caches hold.",),
                    )
                ),
            )

    def _idle(self) -> None:
        try:
            if self._writer.flush() or self._news:
                self._news = False
                self._poke()
        except RecordError as error:
            self._record_failed(error)

    def _poke(self) -> None:
        if self._attached is not None:
            self._attached.poke()

    def _collect_provenance(self) -> None:
        """Start the collector at the lowest priority: beside the training, or after a job that is shorter."""
        assert self._provenance_timer is not None
        self._provenance_timer.cancel()
        self._provenance_timer = None
        program = Path(__file__).resolve().parent.parent / "provenance" / "__main__.py"
        try:
            pid = processes.spawn(
                [sys.executable, str(program), str(self._record.path)],
                env={**os.environ, "PYTHONPATH": str(program.parent.parent.parent)},
                cwd=self._record.path,
                nice=19,
            )
        except OSError as error:
            self._status = statuses.with_warning(self._status, f"provenance could not be collected: {error}")
            return
        self._provenance = pid
        self._backend.protected.add(pid)

        def ended(status: int) -> None:
            self._provenance = None
            self._backend.protected.discard(pid)

        self._loop.on_child(pid, ended)


def _tidy() -> None:
    """Remove the temporary folders of jobs that were killed with everything of theirs, which nobody else does."""
    from estimators import clean

    with contextlib.suppress(Exception):  # another job's leftovers are not this one's failure
        clean.remove(clean.leftover_folders())


def _archive(spec: TrainingJobSpec) -> str | None:
    """Where the model is, if it was packed."""
    folder = local.output_dir(spec)
    return str(folder / "model.tar.gz") if folder is not None and (folder / "model.tar.gz").exists() else None


def main(argv: list[str] | None = None) -> int:
    """Run a job's supervisor."""
    parser = argparse.ArgumentParser(prog="estimators.jobs.supervisor", description=__doc__)
    parser.add_argument("--record", required=True, help="the job's record")
    parser.add_argument("--lock-fd", type=int, required=True, help="descriptor that holds the record's lock")
    parser.add_argument("--attached-fd", type=int, help="socket to the caller that waits")
    parser.add_argument("--caller-pid", type=int, help="the caller's pid")
    arguments = parser.parse_args(argv)
    record = JobRecord.adopt(arguments.record, arguments.lock_fd)
    umask = os.umask(0o077)  # the record is the user's only
    processes.become_subreaper()
    loop = Loop()
    supervisor = None
    try:
        supervisor = Supervisor(loop, record, umask)
        supervisor.listen()
        if arguments.attached_fd is not None:
            supervisor.attach(arguments.attached_fd, arguments.caller_pid or 0)
        supervisor.start()
        supervisor.run()
    except Exception:
        loop.end_descendants()
        _record_fault(record)
        raise
    supervisor.linger()
    return 0


def _record_fault(record: JobRecord) -> None:
    """Our own fault ends the job as failed, with the traceback."""
    import traceback

    failure = Failure(
        cause=Cause.INTERNAL,
        message=f"fleetfit's supervisor failed: {sys.exc_info()[1]!r}",
        traceback=traceback.format_exc(),
        hints=("This is a fault of fleetfit; please report it with the traceback.",),
    )
    now = time.time()
    with contextlib.suppress(RecordError, ValueError, OSError):
        status = record.stored_status() or statuses.new_status(record.read_request(), now)
        record.write_status(statuses.fail(status, failure, now))


if __name__ == "__main__":
    sys.exit(main())
