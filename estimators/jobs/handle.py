"""The handle of a training job that users hold."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from container.contract.failures import Cause, Failure
from container.contract.membership import natural_key
from estimators.callbacks import EventFeed, check_callbacks
from estimators.errors import JobUnreachableError, RecordError, TrainingJobError
from estimators.jobs import client
from estimators.jobs import status as statuses
from estimators.jobs.interrupts import Interrupts
from estimators.jobs.record import JobRecord
from estimators.jobs.states import SecondaryStatus, TrainingJobStatus
from estimators.logs import LogLine, LogReader
from estimators.metrics import final_metrics, metrics_frame
from estimators.phases import phases
from estimators.printing import LogPrinter, in_jupyter, wants_colour, write_text
from estimators.result import Result
from estimators.spec import TrainingJobSpec

if TYPE_CHECKING:
    import pandas

#: How often a job is looked at to which there is no tie, in seconds.
_POLL_SECONDS = 0.1
#: With a tie the supervisor says when there is something; this is in case it cannot.
_TIED_POLL_SECONDS = 1.0
#: Between two looks at the logs of a job that writes without pause, in seconds: it shares the machine with us.
_BREATH_SECONDS = 0.005
#: How long a supervisor may take to end a job beyond the script's own grace, before it is killed.
_ENDING_SECONDS = 15.0

#: After so many seconds without news a waiting caller asks whether the supervisor is there, and believes so often that
#: it is only slow.
_PING_SECONDS = 15.0
_PINGS = 3

#: Members of the request that DescribeTrainingJob does not repeat.
_NOT_DESCRIBED = ("Tags", "SessionChainingConfig")


class TrainingJob:
    """A training job, running or over.

    It holds nothing but the name: everything is read from the job's record when it is asked for, so a handle from
    another process (``Estimator.attach(name)``) says the same. The handle that started a job with ``wait=True`` also
    holds the tie that ends the job with this process.
    """

    def __init__(
        self,
        record: JobRecord,
        *,
        tie: client.Tie | None = None,
        process: subprocess.Popen[bytes] | None = None,
    ) -> None:
        """Use :func:`estimators.jobs.launch.launch` or :meth:`attach`.

        Args:
            record: The job's record.
            tie: The connection that ties the job to this process.
            process: The supervisor, where this process started it.
        """
        self.record = record
        self._tie = tie
        self._process = process

    @classmethod
    def attach(cls, name: str, home: str | Path | None = None) -> TrainingJob:
        """The handle of a job of this or an earlier process.

        Raises:
            JobNotFoundError: there is no such job; the message has the nearest name.
        """
        return cls(JobRecord.open(name, home))

    def __reduce__(self) -> tuple[Any, ...]:
        return TrainingJob.attach, (self.name, self.record.home)

    def __repr__(self) -> str:
        try:
            text = str(self.status)
        except (RecordError, LookupError) as error:
            text = str(error)
        return f"<TrainingJob {self.name!r}: {text}>"

    def _repr_html_(self) -> str:
        from estimators.display import job_html

        return job_html(self.result())

    # --- what it is ---

    @property
    def name(self) -> str:
        """The job's name."""
        return self.record.name

    @property
    def status(self) -> TrainingJobStatus:
        """The primary status; it equals its string: ``job.status == "Completed"``.

        Raises:
            RecordError: a newer fleetfit wrote a status that this one does not know.
        """
        value = self._status()["TrainingJobStatus"]
        try:
            return TrainingJobStatus(value)
        except ValueError:
            raise RecordError(
                f"training job {self.name!r} has the status {value!r}, which this fleetfit does not know: upgrade it."
            ) from None

    @property
    def secondary_status(self) -> SecondaryStatus | str:
        """What the job is doing; a plain string where a newer fleetfit wrote one that this one does not know."""
        value = str(self._status()["SecondaryStatus"])
        try:
            return SecondaryStatus(value)
        except ValueError:
            return value

    @property
    def failure(self) -> Failure | None:
        """Why it failed, as data; None when it did not."""
        return statuses.failure_of(self._status())

    @property
    def warnings(self) -> list[str]:
        """What the user was warned of, before the start and since."""
        return list(self._status().get(statuses.OWN, {}).get("warnings") or [])

    @property
    def hosts(self) -> list[str]:
        """The hosts' names, in rank order."""
        count = (self.record.read_request().get("ResourceConfig") or {}).get("InstanceCount") or 0
        planned = {f"algo-{number}" for number in range(1, int(count) + 1)}
        return sorted(planned | set(self.record.hosts), key=natural_key)

    @property
    def model_data(self) -> str | None:
        """Where the model is (``model.tar.gz``); None while there is none."""
        artifacts = self._status().get("ModelArtifacts") or {}
        if artifacts.get("S3ModelArtifacts"):
            return str(artifacts["S3ModelArtifacts"])
        model = self.record.output_dir / "model.tar.gz"
        return str(model) if model.is_file() else None

    @property
    def checkpoints(self) -> str:
        """Where the checkpoints are: the job's ``checkpoint_s3_uri``, or a folder of its record."""
        uri = (self.record.read_request().get("CheckpointConfig") or {}).get("S3Uri")
        return str(uri) if uri else str(self.record.checkpoints_dir)

    def describe(self) -> dict[str, Any]:
        """What SageMaker's DescribeTrainingJob would answer, times as seconds since the epoch; secrets are ``***``.

        The key ``Fleetfit`` has what SageMaker has no name for: failure, warnings, attempt.
        """
        from estimators.secrets import mask_request

        request = self.record.read_request()
        answer = {name: value for name, value in request.items() if name not in _NOT_DESCRIBED}
        return mask_request({**answer, **self._status()})

    def phases(self) -> dict[str, float | None]:
        """Seconds per phase: launch, import, rendezvous, first_step, training, teardown; None where unknown."""
        return phases(self.record.events())

    def metrics(self) -> pandas.DataFrame:
        """Every value of every metric: time, elapsed_s (since the job's creation), attempt, rank, name, value, host."""
        return metrics_frame(self.record.events("metric"), start=self._status().get("CreationTime"))

    def result(self) -> Result:
        """What has come of the job so far."""
        status = self._status()
        reported = status.get("FinalMetricDataList")
        final = reported if reported is not None else final_metrics(self.record.events("metric"))
        end = status.get("TrainingEndTime")
        return Result(
            job_name=self.name,
            status=str(status["TrainingJobStatus"]),
            secondary_status=str(status["SecondaryStatus"]),
            seconds=end - status["CreationTime"] if end is not None and "CreationTime" in status else None,
            phases=self.phases(),
            metrics={str(item["MetricName"]): float(item["Value"]) for item in final},
            model_data=self.model_data,
            checkpoints=self.checkpoints if self._has_checkpoints() else None,
            logs=str(self.record.hosts_dir),
            failure_reason=status.get("FailureReason"),
        )

    def _has_checkpoints(self) -> bool:
        path = Path(self.checkpoints)
        if "://" in self.checkpoints or not path.is_dir():
            return "://" in self.checkpoints
        return any(path.iterdir())

    def _status(self) -> dict[str, Any]:
        if self._process is not None:
            self._process.poll()  # so that a supervisor that is done does not stay as a zombie
        return self.record.read_status()

    # --- logs ---

    def logs(self, rank: int | None = None, follow: bool = False) -> None:
        """Print the logs.

        Args:
            rank: Only this rank's.
            follow: Go on until the job is over. An interrupt ends this, not the job.
        """
        printer = self._printer()
        for lines in self._portions(rank, follow):
            printer.print(lines)
        printer.finish()

    def log_lines(self, rank: int | None = None, follow: bool = False) -> Iterator[LogLine]:
        """The logs as data, merged over processes by time; see :meth:`logs`."""
        for lines in self._portions(rank, follow):
            yield from lines

    def _portions(self, rank: int | None, follow: bool) -> Iterator[list[LogLine]]:
        reader = LogReader(self.record, rank)
        while True:
            over = statuses.is_terminal(self._status())
            yield from reader.drain(final=over)
            if over or not follow:
                return
            time.sleep(_POLL_SECONDS)

    def _printer(self, stream: IO[str] | None = None) -> LogPrinter:
        from estimators.jobs.masking import text_mask

        return LogPrinter(stream, mask=text_mask(self.record.read_request()))

    # --- ending it ---

    def stop(self, wait: bool = False, *, grace: float | None = None) -> None:
        """Ask the job to end; the script gets SIGTERM and time to save. Nothing happens to a job that is over.

        Args:
            wait: Return when it has ended.
            grace: Seconds that the script has to save; default: the job's ``stop_grace`` (120 s).

        Raises:
            JobUnreachableError: the job's supervisor does not answer, or does not end the job.
        """
        if not statuses.is_terminal(self._status()):
            self._ask_to_stop(grace, "stop() was called")
        if wait:
            seconds = float(grace if grace is not None else self.record.read_options().get("stop_grace") or 0.0)
            until = time.monotonic() + seconds + _ENDING_SECONDS
            while not statuses.is_terminal(self._status()):
                if time.monotonic() > until:
                    raise JobUnreachableError(
                        f"training job {self.name!r} was told to stop and has not ended after "
                        f"{seconds + _ENDING_SECONDS:g} s: its supervisor (pid {self._supervisor_pid()}) may be "
                        "stopped."
                    )
                time.sleep(_POLL_SECONDS / 5)
            self._reap()

    def _supervisor_pid(self) -> int | None:
        pid = (self.record.stored_status() or {}).get(statuses.OWN, {}).get("supervisor_pid")
        return pid if isinstance(pid, int) else None

    def _ask_to_stop(self, grace: float | None, reason: str) -> None:
        message = client.stop_message(grace, reason)
        if self._tie is not None and not self._tie.ended and self._tie.send(message):
            return
        try:
            answer = client.request(self.record, message)
        except JobUnreachableError:
            if statuses.is_terminal(self._status()):
                return
            raise
        if not answer.get("ok"):
            raise JobUnreachableError(f"training job {self.name!r} was not stopped: {answer.get('error', answer)}")

    # --- waiting for it ---

    def wait(self, logs: bool = True, timeout: float | None = None, callbacks: Any = None) -> None:
        """Wait until the job is over.

        An interrupt (Ctrl-C, a notebook's stop button) ends a job that is tied to this process: the script has
        ``interrupt_grace`` (5 s) to save; a second interrupt ends it at once. A job that is not tied goes on. In both
        cases KeyboardInterrupt is raised, when the job has ended or at once.

        Args:
            logs: Whether to print the logs, and a table at the end.
            timeout: Give up waiting after this many seconds; the job goes on.
            callbacks: An :class:`estimators.callbacks.Callback`, or a list of them.

        Raises:
            ConfigurationError: a callback is none.
            TrainingJobError: the job failed.
            KeyboardInterrupt: see above.
            BrokenPipeError: nobody reads the standard output any more; a tied job has been stopped.
            TimeoutError: it is not over after ``timeout`` seconds.
        """
        output = _Output(self, sys.stdout if logs else None)
        feed = EventFeed(self, check_callbacks(callbacks))
        deadline = time.monotonic() + timeout if timeout is not None else None
        with Interrupts() as interrupts:
            try:
                if logs and not self._is_over():
                    output.message(self._opening())
                _Wait(self, output, feed, interrupts, deadline).run()
            except (TimeoutError, KeyboardInterrupt, BrokenPipeError):
                raise
            except BaseException:
                # Something else went wrong here: a tied job must not go on unwatched.
                if self._tie is not None and not self._tie.ended:
                    self._tie.send(client.stop_message(self._interrupt_grace(), "its caller failed"))
                raise
        status = self._status()
        if status["TrainingJobStatus"] == TrainingJobStatus.FAILED:
            failure = statuses.failure_of(status)
            raise TrainingJobError(self, failure or Failure(cause=Cause.INTERNAL, message="unknown"))
        output.table()

    def _opening(self) -> str:
        """What a caller sees first: the first line of a script may take a while."""
        spec = TrainingJobSpec.from_request(self.record.read_request())
        strategy = spec.strategy
        shape = f"{spec.instance_count} host{'s' if spec.instance_count > 1 else ''}"
        if strategy is not None:
            per_host = strategy.ranks_per_host
            shape += f" × {per_host} process{'es' if per_host > 1 else ''}, {strategy.name}"
        return f"training job {self.name}: {shape}, on {spec.instance_type}"

    def _interrupt_grace(self) -> float:
        value = self.record.read_options().get("interrupt_grace")
        return float(value) if isinstance(value, int | float) else 5.0

    def _is_over(self) -> bool:
        """Whether the end is on record. A supervisor with a tie tells when it is worth looking."""
        if self._tie is not None and not self._tie.ended:
            return False
        return statuses.is_terminal(self._status())

    def _reap(self) -> None:
        if self._tie is not None:
            self._tie.close()
        if self._process is not None:
            self._process.poll()  # it may stay a little to complete the provenance; a later call reaps it


class _Output:
    """Where a waiting caller shows the logs: nowhere, or on a stream."""

    def __init__(self, job: TrainingJob, stream: IO[str] | None) -> None:
        self._job = job
        self._stream = stream
        self._reader = LogReader(job.record) if stream is not None else None
        self._printer = job._printer(stream) if stream is not None else None
        #: A pipe on which the logs go, whose reader may go away.
        self.pipe = _pipe_of(stream)

    def show(self, *, final: bool = False) -> bool:
        """Print what is new; returns whether there was anything."""
        if self._reader is None or self._printer is None:
            return False
        shown = False
        for lines in self._reader.drain(final=final):
            self._printer.print(lines)
            shown = True
        if final:
            self._printer.finish()
        return shown

    def message(self, text: str) -> None:
        """Print a line of our own, also without logs."""
        if self._printer is not None:
            self._printer.message(text)
        elif not self._silent:
            write_text(sys.stderr, text + "\n")

    _silent = False

    def silence(self) -> None:
        """Nobody reads: print nothing more."""
        self._reader = self._printer = self._stream = self.pipe = None
        self._silent = True

    def table(self) -> None:
        """Print the table of the end; in a notebook as HTML."""
        stream = self._stream
        if stream is None:
            return
        from estimators import display

        if in_jupyter(stream) and display.show_html(self._job):
            return
        columns = shutil.get_terminal_size().columns
        text = display.job_table(self._job.result(), colour=wants_colour(stream), columns=columns)
        write_text(stream, text)


class _Wait:
    """One call of :meth:`TrainingJob.wait`."""

    def __init__(
        self,
        job: TrainingJob,
        output: _Output,
        feed: EventFeed,
        interrupts: Interrupts,
        deadline: float | None,
    ) -> None:
        self._job = job
        self._output = output
        self._feed = feed
        self._interrupts = interrupts
        self._deadline = deadline
        self._heeded = 0  # interrupts that have been acted on
        self._kill_at: float | None = None  # when the supervisor has had its time to end the job
        self._broken: BrokenPipeError | None = None
        self._ping_at = time.monotonic() + _PING_SECONDS
        self._unanswered = 0

    def run(self) -> None:
        """Return when the job is over, or raise as :meth:`TrainingJob.wait` says."""
        while True:
            try:
                if self._interrupts.count > self._heeded:
                    self._heeded += 1
                    self._interrupted()
                if self._step():
                    break
            except KeyboardInterrupt:
                if self._job._tie is None:
                    raise
                self._interrupts.count += 1
            except BrokenPipeError as error:
                self._output.silence()
                if self._job._tie is None:
                    raise
                self._broken = self._broken or error
                self._stop(self._job._interrupt_grace(), "its output was closed")
        self._job._reap()
        if self._broken is not None:
            raise self._broken
        if self._interrupts.count:
            with contextlib.suppress(BrokenPipeError):
                self._output.message(f"training job {self._job.name}: {self._job.status}.")
            raise KeyboardInterrupt

    def _step(self) -> bool:
        """Show what is new and wait a little; returns whether the job is over."""
        job, tie = self._job, self._job._tie
        if tie is not None:
            tie.drain()
        over = job._is_over()
        shown = self._output.show(final=over)
        if over:
            self._feed.end()
            return True
        shown = self._feed.poll() or shown
        if shown:
            self._ping_at = time.monotonic() + _PING_SECONDS
        elif time.monotonic() >= self._ping_at:
            self._ping()
        now = time.monotonic()
        if self._deadline is not None and now >= self._deadline:
            raise TimeoutError(f"training job {job.name!r} is still {job.status} ({job.secondary_status}).")
        if self._kill_at is not None and now >= self._kill_at:
            self._kill()
        if shown:
            self._interrupts.wait(_BREATH_SECONDS, watch=self._output.pipe)
        pause = _TIED_POLL_SECONDS if tie is not None else _POLL_SECONDS
        for moment in (self._deadline, self._kill_at):
            if moment is not None:
                pause = min(pause, max(0.0, moment - now))
        if tie is not None and not tie.ended:
            self._interrupts.wait(pause, tie.fileno(), watch=self._output.pipe)
        else:
            # With a tie that has ended, the end is a moment away: the supervisor's lock is about to be free.
            self._interrupts.wait(min(pause, _BREATH_SECONDS) if tie is not None else pause, watch=self._output.pipe)
        return False

    def _ping(self) -> None:
        """The job has been silent for a while: see that its supervisor is there, and wait for nobody who is not.

        Raises:
            JobUnreachableError: it has not answered several times, and nobody's job is tied to us.
        """
        job = self._job
        self._ping_at = time.monotonic() + _PING_SECONDS
        try:
            client.request(job.record, {"op": "ping"})
        except JobUnreachableError:
            self._unanswered += 1
        else:
            self._unanswered = 0
        if self._unanswered < _PINGS or job._is_over():
            return
        text = f"the supervisor of training job {job.name} (pid {job._supervisor_pid()}) does not answer"
        if job._tie is None:
            raise JobUnreachableError(f"{text}: it is stopped, or the machine is overloaded.")
        self._output.message(f"{text}; it is ended, and the job with it.")
        self._kill()

    def _interrupted(self) -> None:
        job = self._job
        if job._tie is None:
            with contextlib.suppress(BrokenPipeError):
                self._output.message(f"training job {job.name} goes on; its stop() ends it.")
            raise KeyboardInterrupt
        if self._heeded == 1:
            grace = job._interrupt_grace()
            self._stop(grace, "interrupted by the user")
            self._output.message(
                f"stopping training job {job.name}: it has {grace:g} s to save. Interrupt again to end it at once."
            )
        elif self._heeded == 2:
            self._stop(0.0, "interrupted twice by the user")
            self._output.message(f"ending training job {job.name} at once.")
        else:
            self._kill_at = time.monotonic()

    def _stop(self, grace: float, reason: str) -> None:
        self._kill_at = time.monotonic() + grace + _ENDING_SECONDS
        tie = self._job._tie
        if tie is None or tie.ended or not tie.send(client.stop_message(grace, reason)):
            # It is ending by itself, or does not listen: then the end of the tie is what it must notice.
            self._kill_at = time.monotonic() + _ENDING_SECONDS

    def _kill(self) -> None:
        """The supervisor did not end the job in its time: the kernel does, whatever state it is in."""
        self._kill_at = None
        job = self._job
        if job._process is not None and job._process.poll() is None:
            os.kill(job._process.pid, signal.SIGKILL)
        if job._tie is not None:
            job._tie.close()


def _pipe_of(stream: IO[str] | None) -> int | None:
    """The descriptor of a stream that is a pipe or socket of this process, else None."""
    if stream is None or in_jupyter(stream):
        return None
    try:
        descriptor = stream.fileno()
        mode = os.fstat(descriptor).st_mode
    except (OSError, ValueError, AttributeError):
        return None
    return descriptor if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) else None
