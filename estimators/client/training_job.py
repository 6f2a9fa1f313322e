"""The handle of a training job that users hold."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from container.contract.failures import Cause, Failure
from container.contract.membership import natural_key
from container.contract.names import shown, unknown
from estimators.client import ipc_client, launch
from estimators.client.callbacks import Callbacks, EventFeed, check_callbacks
from estimators.client.interrupts import Interrupts
from estimators.client.printing import LogPrinter
from estimators.client.waiting import ENDING_SECONDS, Output, Wait
from estimators.job.errors import (
    ConfigurationError,
    JobUnreachableError,
    RecordError,
    TrainingJobError,
    UnsupportedError,
)
from estimators.job.metrics import METRIC_KINDS, metrics_frame, system_metrics
from estimators.job.request import TrainingJobSpec
from estimators.records import outputs, ranks
from estimators.records import status as statuses
from estimators.records.logs import LogLine, LogReader
from estimators.records.phases import phases
from estimators.records.record import JobRecord
from estimators.records.states import SecondaryStatus, TrainingJobStatus
from estimators.results.result import Result

if TYPE_CHECKING:
    import pandas


#: How often a job is looked at to which there is no tie, in seconds.
_POLL_SECONDS = 0.1
#: How long ending may take where the job is on SageMaker, in seconds: two minutes for the script, then uploading and
#: giving back the instances.
_ENDING_ELSEWHERE_SECONDS = 1800.0
#: How long a handle waits for news of a job elsewhere that nobody followed, in seconds.
_FIRST_NEWS_SECONDS = 15.0

#: Members of the request that DescribeTrainingJob does not repeat.
_NOT_DESCRIBED = ("Tags", "SessionChainingConfig")


class TrainingJob:
    """A training job, running or ended.

    The handle holds only the name and reads everything else from the job's record, so a handle from another process
    (``Estimator.attach(name)``) returns the same. If ``wait=True`` started the job, the handle also holds the
    connection that ends the job when this process ends.
    """

    def __init__(
        self,
        record: JobRecord,
        tie: ipc_client.Tie | None = None,
        process: subprocess.Popen[bytes] | None = None,
    ) -> None:
        """Use :meth:`attach`, or the handle that ``fit()`` returns.

        Args:
            record: The job's record.
            tie: The connection that ties the job to this process.
            process: The supervisor, if this process started it.
        """
        self.record = record
        self._tie = tie
        self._process = process

    @classmethod
    def attach(cls, name: str, home: str | Path | None = None) -> TrainingJob:
        """Return the handle of a job, which another process may have started.

        ``Estimator.attach(name, dispatcher=…)`` also finds a job that was started from another machine.

        Raises:
            JobNotFoundError: there is no such job; the message has the nearest name.
        """
        job = cls(JobRecord.open(name, home))
        job._ensure_followed()
        return job

    def __reduce__(self) -> tuple[Any, ...]:
        return TrainingJob.attach, (self.name, self.record.home)

    def __repr__(self) -> str:
        try:
            text = str(self.status)
        except (RecordError, LookupError) as error:
            text = str(error)
        return f"<TrainingJob {self.name!r}: {text}>"

    def _repr_html_(self) -> str:
        from estimators.results.display import job_html

        return job_html(self.result())

    # --- what it is ---

    @property
    def name(self) -> str:
        """The job's name."""
        return self.record.name

    @property
    def status(self) -> TrainingJobStatus:
        """The primary status, which equals its text: ``job.status == "Completed"``.

        Raises:
            RecordError: a newer fleetfit wrote a status that this version does not know.
        """
        value = self._status()["TrainingJobStatus"]
        try:
            return TrainingJobStatus(value)
        except ValueError:
            raise RecordError(
                f"training job {self.name!r} has the status {value!r}, which this version of fleetfit does not know: "
                "upgrade fleetfit."
            ) from None

    @property
    def secondary_status(self) -> SecondaryStatus | str:
        """What the job is doing; a plain string if a newer fleetfit wrote a status that is unknown here."""
        value = str(self._status()["SecondaryStatus"])
        try:
            return SecondaryStatus(value)
        except ValueError:
            return value

    @property
    def failure(self) -> Failure | None:
        """Why the job failed, as data; None if it did not fail."""
        return statuses.failure_of(self._status())

    @property
    def warnings(self) -> list[str]:
        """The warnings before and since the start of the job."""
        return list(self._status().get(statuses.OWN, {}).get("warnings") or [])

    @property
    def hosts(self) -> list[str]:
        """The names of the hosts, in rank order. For an elastic job: only the current hosts."""
        there = [str(host["name"]) for host in self.membership if host["state"] not in ("gone", "spare")]
        if there:
            return sorted(there, key=natural_key)
        count = (self.record.read_request().get("ResourceConfig") or {}).get("InstanceCount") or 0
        planned = {f"algo-{number}" for number in range(1, int(count) + 1)}
        return sorted(planned | set(self.record.hosts), key=natural_key)

    @property
    def model_data(self) -> str | None:
        """Where the model is (``model.tar.gz``); None if there is no model yet."""
        return outputs.model_data(self.record)

    @property
    def checkpoints(self) -> str:
        """Where the checkpoints are: the job's ``checkpoint_s3_uri``, or a folder in its record."""
        return outputs.checkpoints(self.record)

    def describe(self) -> dict[str, Any]:
        """Return the job as SageMaker's DescribeTrainingJob does. Times are seconds since the epoch, secrets ``***``.

        The key ``Fleetfit`` has what SageMaker's response does not have: failure, warnings, attempt.
        """
        from estimators.job.secrets import mask_request

        request = self.record.read_request()
        answer = {name: value for name, value in request.items() if name not in _NOT_DESCRIBED}
        return mask_request({**answer, **self._status()})

    @property
    def phases(self) -> dict[str, float | None]:
        """Seconds per phase: launch, import, rendezvous, first_step, training, teardown; None if unknown."""
        return phases(self.record.events())

    def metrics(self, kind: str = "script") -> pandas.DataFrame:
        """Return every value of every metric.

        The columns are time, elapsed_s (since the job's creation), attempt, rank, name, value and host.

        Args:
            kind: ``"script"``: the metrics of the script; ``"system"``: CPU and memory of each rank, and network and
                GPUs of each host.

        Raises:
            ConfigurationError: there is no such kind.
        """
        if kind not in METRIC_KINDS:
            raise ConfigurationError(unknown("kind of metrics", kind, METRIC_KINDS))
        events = self.record.events("metric" if kind == "script" else "resources")
        found = events if kind == "script" else system_metrics(events)
        return metrics_frame(found, start=self._status().get("CreationTime"))

    def result(self) -> Result:
        """Return the result of the job so far; for a job that has ended, the result that was saved."""
        from estimators.results import saving

        return saving.result_of(self.record)

    def value(self) -> Any:
        """Wait for a job whose entry point is a function, and return the function's return value on rank 0.

        A path in the job's model or output folder is returned as a path on this machine, where its files are.

        Raises:
            ConfigurationError: the entry point is a script, which returns nothing.
            TrainingJobError: the job failed, but not because of an exception of the function.
            RecordError: the job was stopped and has no value, or the value cannot be unpickled here.
            Exception: the exception that the function raised; its cause has the traceback on the host.
        """
        from estimators.client.functions import values

        if not values.is_function(self.record):
            raise ConfigurationError(
                f"job {self.name} ran a script, which returns no value. See model_data and logs()."
            )
        try:
            self.wait(logs=False)
        except TrainingJobError as error:
            raised = values.of_function(error)
            raise raised from raised.__cause__
        return values.value_of(self.record)

    # --- jobs that live elsewhere ---

    @property
    def lives_elsewhere(self) -> bool:
        """Whether the job is on SageMaker or at a dispatcher, where it continues without this machine."""
        return statuses.lives_elsewhere(self.record.stored_status())

    @property
    def dispatcher(self) -> str | None:
        """The dispatcher that runs the job's supervisor; None for a job without one."""
        found = self.record.read_options().get("dispatcher")
        return str(found) if found is not None else None

    def _ensure_followed(self, env: Mapping[str, str] | None = None) -> None:
        """Start a new supervisor for a job on SageMaker or at a dispatcher, if the old one was killed; else do nothing.

        Args:
            env: The environment of the new supervisor; default: the environment of this process.

        Raises:
            BackendError: the supervisor cannot be started.
        """
        stored = self.record.stored_status()
        if not statuses.lives_elsewhere(stored) or statuses.is_terminal(stored or {}) or self.record.is_supervised():
            return
        taken = JobRecord(self.record.path)
        if not taken.lock():
            return  # somebody else was quicker
        try:
            self._process = launch.start(taken, env)
        finally:
            taken.release()
        until = time.monotonic() + _FIRST_NEWS_SECONDS
        while self._last_seen() == statuses.last_seen(stored) and self.record.is_supervised():
            if time.monotonic() > until:
                break
            time.sleep(_POLL_SECONDS / 2)

    def _last_seen(self) -> float | None:
        return statuses.last_seen(self.record.stored_status())

    def _wait_until_taken(self) -> None:
        """Wait until SageMaker or the dispatcher has accepted or refused the job. For other jobs, return at once.

        Raises:
            TrainingJobError: the job was refused, or could not be sent.
        """
        while True:
            self._ensure_followed()
            status = self._status()
            if status.get(statuses.OWN, {}).get("taken") or statuses.is_terminal(status):
                break
            time.sleep(_POLL_SECONDS / 2)
        failure = statuses.failure_of(status)
        if failure is not None and not status.get(statuses.OWN, {}).get("taken"):
            raise TrainingJobError(self, failure)

    def _status(self) -> dict[str, Any]:
        if self._process is not None:
            self._process.poll()  # so that a supervisor that is done does not stay as a zombie
        return self.record.read_status()

    # --- logs ---

    def logs(self, rank: int | None = None, follow: bool = False, all: bool = False) -> None:
        """Print the logs.

        TensorFlow's start-up lines are hidden, and a line that several ranks print is shown once.

        Args:
            rank: Print only the lines of this rank.
            follow: Continue until the job ends. An interrupt ends the printing, not the job.
            all: Show every line.

        Raises:
            ConfigurationError: the job has no such rank.
        """
        printer = self._printer(all=all, one_rank=rank is not None)
        for lines in self._portions(rank, follow):
            printer.print(lines)
        printer.finish()

    def log_lines(self, rank: int | None = None, follow: bool = False) -> Iterator[LogLine]:
        """Yield the logs as data, merged over processes by time; see :meth:`logs`."""
        for lines in self._portions(rank, follow):
            yield from lines

    def _check_rank(self, rank: int) -> None:
        """Check that the job has this rank.

        Raises:
            ConfigurationError: the job has no such rank.
        """
        known = ranks.known(self.record)
        if known and rank not in known:
            raise ConfigurationError(f"training job {self.name!r} has no rank {shown(rank)}: {ranks.span_text(known)}.")

    def _portions(self, rank: int | None, follow: bool) -> Iterator[list[LogLine]]:
        if rank is not None:
            self._check_rank(rank)
        reader = LogReader(self.record, rank)
        if follow:
            self._ensure_followed()
        while True:
            over = statuses.is_terminal(self._status())
            yield from reader.drain(final=over)
            if over or not follow:
                return
            yield []  # time goes by
            time.sleep(_POLL_SECONDS)

    def _printer(
        self, stream: IO[str] | None = None, *, all: bool = False, one_rank: bool = False, waits: bool = False
    ) -> LogPrinter:
        """Return what prints the logs.

        Args:
            stream: Default: standard output.
            all: Whether every line is shown.
            one_rank: Whether the lines of a single rank are printed.
            waits: Whether whoever looks is told of the job's failure, with the traceback.
        """
        from estimators.client.folding import Folding
        from estimators.client.tracebacks import Tracebacks
        from estimators.job.log_redaction import text_mask

        request = self.record.read_request()
        spec = TrainingJobSpec.from_request(request)
        several = not one_rank and (spec.instance_count > 1 or spec.strategy is not None)
        if all:
            return LogPrinter(stream, mask=text_mask(request))
        tracebacks = Tracebacks() if waits else None
        return LogPrinter(stream, mask=text_mask(request), folding=Folding(several=several), tracebacks=tracebacks)

    # --- ending it ---

    def stop(self, wait: bool = False, *, grace: float | None = None) -> None:
        """Ask the job to end. The script gets SIGTERM, and time to save. A job that has ended is left unchanged.

        Args:
            wait: Whether to wait until the job has ended.
            grace: Seconds that the script has to save; default: the job's ``stop_grace`` (120 s).

        Raises:
            UnsupportedError: ``grace`` was given for a job on SageMaker, which gives every script 120 s.
            JobUnreachableError: the job's supervisor does not answer, or does not end the job.
        """
        ending = ENDING_SECONDS
        if not statuses.is_terminal(self._status()):
            if self.lives_elsewhere and self.dispatcher is None:
                if grace is not None:
                    raise UnsupportedError(
                        f"stop(grace={grace!r}): training job {self.name!r} is on SageMaker, which gives every "
                        "script 120 s to save. Leave grace out."
                    )
                ending = _ENDING_ELSEWHERE_SECONDS
            self._ensure_followed()
            self._ask_to_stop(grace, "stop() was called")
        if wait:
            seconds = float(grace if grace is not None else self.record.read_options().get("stop_grace") or 0.0)
            until = time.monotonic() + seconds + ending
            while not statuses.is_terminal(self._status()):
                if time.monotonic() > until:
                    raise JobUnreachableError(
                        f"training job {self.name!r} was told to stop, but has not ended after {seconds + ending:g} "
                        f"s. Its supervisor process (pid {self._supervisor_pid()}) may be suspended (SIGSTOP), or "
                        "the machine may be overloaded."
                    )
                time.sleep(_POLL_SECONDS / 5)
            self._reap()

    def _supervisor_pid(self) -> int | None:
        pid = (self.record.stored_status() or {}).get(statuses.OWN, {}).get("supervisor_pid")
        return pid if isinstance(pid, int) else None

    def _ask_to_stop(self, grace: float | None, reason: str) -> None:
        message = ipc_client.stop_message(grace, reason)
        if self._tie is not None and not self._tie.ended and self._tie.send(message):
            return
        try:
            answer = ipc_client.request(self.record, message)
        except JobUnreachableError:
            if statuses.is_terminal(self._status()):
                return
            raise
        if not answer.get("ok"):
            raise JobUnreachableError(f"training job {self.name!r} was not stopped: {answer.get('error', answer)}")

    # --- an elastic job's hosts ---

    @property
    def membership(self) -> list[dict[str, Any]]:
        """The present and former hosts of an elastic job, each with its ``name``, current ``state`` and ``ranks``.

        States: ``starting``, ``ready``, ``leaving``, ``gone``, ``spare``. Empty for a job that is not elastic.
        """
        noted = self._status().get(statuses.OWN, {}).get("hosts")
        return [dict(host) for host in noted] if isinstance(noted, list) else []

    def add_hosts(self, count: int = 1) -> list[str]:
        """Start more hosts for an elastic job. The training continues until the new hosts can join.

        Args:
            count: Number of hosts to add.

        Returns:
            The names of the new hosts.

        Raises:
            ConfigurationError: the job cannot have that many hosts, or is not elastic.
            JobUnreachableError: the job's supervisor does not answer.
        """
        return [str(name) for name in self._ask({"op": "add_hosts", "count": count})["hosts"]]

    def remove_host(self, name: str) -> None:
        """Remove a host from an elastic job. The others continue without it as soon as they notice the change.

        Args:
            name: The host, such as ``algo-2``.

        Raises:
            ConfigurationError: there is no such host, too few would be left, or the job is not elastic.
            JobUnreachableError: the job's supervisor does not answer.
        """
        self._ask({"op": "remove_host", "host": name})

    def interrupt(self, name: str, notice_s: float = 120.0) -> None:
        """Simulate a spot interruption of an elastic job's host, which leaves or is killed at the end of the notice.

        Args:
            name: The host.
            notice_s: Seconds from the notice to the kill.

        Raises:
            ConfigurationError: there is no such host, or the job is not elastic.
            JobUnreachableError: the job's supervisor does not answer.
        """
        self._ask({"op": "interrupt", "host": name, "notice_s": notice_s})

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        answer = ipc_client.request(self.record, message)
        if not answer.get("ok"):
            error = str(answer.get("error", answer))
            if error.startswith("unknown operation"):
                error = (
                    "hosts cannot be added, removed or interrupted, because the job's strategy is neither "
                    "ElasticHorovod nor ElasticTorchDistributed."
                )
            raise ConfigurationError(f"training job {self.name!r}: {error}")
        return answer

    # --- going on with it ---

    def resume(
        self, wait: bool = True, logs: bool = True, callbacks: Callbacks = None, *, all: bool = False
    ) -> TrainingJob:
        """Continue a job that failed, was stopped, or lost its supervisor: start another attempt with the same record.

        Scripts continue from their last checkpoint. The counts of failures and the time of ``max_run`` start again.

        Args:
            wait: Whether to wait until the job ends; if True, the job ends if this process ends.
            logs: Whether to show the job's output while waiting; as for :meth:`wait`.
            callbacks: As for :meth:`wait`.
            all: Whether to show every line, as for :meth:`logs`.

        Returns:
            A new handle of the job.

        Raises:
            ConfigurationError: the job is running, or has completed.
            BackendError: the job cannot be started.
            TrainingJobError: the job failed again (only with ``wait=True``).
        """
        job = TrainingJob(*launch.resume(JobRecord(self.record.path), attached=wait))
        if wait:
            job.wait(logs=logs, callbacks=callbacks, all=all)
        return job

    # --- waiting for it ---

    def wait(
        self, logs: bool = True, timeout: float | None = None, callbacks: Callbacks = None, *, all: bool = False
    ) -> None:
        """Wait until the job has ended.

        An interrupt (Ctrl-C, a notebook's stop button) ends a job that is tied to this process: the script has
        ``interrupt_grace`` (5 s) to save; a second interrupt ends the job at once. KeyboardInterrupt is raised when the
        job has ended. Other jobs, such as all jobs on SageMaker, continue after an interrupt: KeyboardInterrupt is
        raised at once.

        Args:
            logs: Whether to print the logs, and a table at the end.
            timeout: Stop waiting after this many seconds; the job continues.
            callbacks: An :class:`estimators.callbacks.Callback`, or a list of callbacks.
            all: Whether to print every line, as for :meth:`logs`.

        Raises:
            ConfigurationError: ``callbacks`` has something that is not a callback.
            TrainingJobError: the job failed.
            KeyboardInterrupt: the waiting was interrupted; see above.
            BrokenPipeError: nobody reads the standard output any more; a job that is tied to this process was stopped.
            TimeoutError: the job has not ended after ``timeout`` seconds.
        """
        checked = check_callbacks(callbacks)
        deadline = time.monotonic() + timeout if timeout is not None else None
        self._ensure_followed()
        with Interrupts() as interrupts:
            output = Output(self, sys.stdout if logs else None, all=all)
            feed = EventFeed(self, checked, output.progress, before=output.hide)
            try:
                if logs and not self._is_over():
                    output.message(self._opening())
                Wait(self, output, feed, interrupts, deadline).run()
            except (TimeoutError, KeyboardInterrupt, BrokenPipeError):
                raise
            except BaseException:
                # Something else went wrong here: a tied job must not go on unwatched.
                if self._tie is not None and not self._tie.ended:
                    self._tie.send(ipc_client.stop_message(self._interrupt_grace(), "its caller failed"))
                raise
            finally:
                output.close()
        status = self._status()
        if status["TrainingJobStatus"] == TrainingJobStatus.FAILED:
            failure = statuses.failure_of(status)
            raised = TrainingJobError(self, failure or Failure(cause=Cause.INTERNAL, message="unknown"))
            raise raised from self._raised_by_function(failure)
        output.table()

    def _raised_by_function(self, failure: Failure | None) -> BaseException | None:
        """Return the exception for which it failed, if its entry point was a function."""
        from estimators.client.functions import values

        return values.exception_of(self.record, failure) if values.is_function(self.record) else None

    def _opening(self) -> str:
        """Return what a caller sees first: the first line of a script may take a while."""
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
        """Return whether the end is on record. A supervisor with a tie tells when it is worth looking."""
        if self._tie is not None and not self._tie.ended:
            return False
        return statuses.is_terminal(self._status())

    def _reap(self) -> None:
        if self._tie is not None:
            self._tie.close()
        if self._process is not None:
            self._process.poll()  # it may stay a little to complete the provenance; a later call reaps it
