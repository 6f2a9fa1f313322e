"""Define the handle with which a user watches, stops and resumes a training job."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from container.contract import rules
from container.contract.failures import Cause, Failure
from container.contract.membership import natural_key
from container.contract.names import shown, suggests_arguments, unknown
from estimators.client import ipc_client, launch
from estimators.client.callbacks import Callbacks, EventFeed, check_callbacks
from estimators.client.interrupts import Interrupts
from estimators.client.printing import LogPrinter
from estimators.client.waiting import ENDING_SECONDS, JobDisplay, Wait
from estimators.job.bounds import MAX_SECONDS
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


#: Interval for polling a job, in seconds.
_POLL_SECONDS = 0.1
#: Maximum time that ``stop(wait=True)`` waits for the end of a job on SageMaker, in seconds. The script has two
#: minutes. Then SageMaker uploads the outputs and releases the instances.
_ENDING_ELSEWHERE_SECONDS = 1800.0
#: Maximum time to wait for the first update of a job on SageMaker or on a dispatcher after a new supervisor has been
#: started, in seconds.
_FIRST_NEWS_SECONDS = 15.0

#: Members of the CreateTrainingJob request that SageMaker's DescribeTrainingJob response does not contain.
_NOT_DESCRIBED = ("Tags", "SessionChainingConfig")


@suggests_arguments
class TrainingJob:
    """A training job that is running or has ended.

    The handle reads all values from the job's record, the folder on disk with the job's status, events and logs.
    Therefore a handle that another process creates with ``Estimator.attach(name)`` returns the same values. If
    ``fit(wait=True)`` started the job, the handle also holds a connection to the job's supervisor process. If this
    process exits, the connection closes, and the supervisor stops the job.
    """

    def __init__(
        self,
        record: JobRecord,
        tie: ipc_client.Tie | None = None,
        process: subprocess.Popen[bytes] | None = None,
    ) -> None:
        """Create a handle. Users call :meth:`attach`, or use the handle that ``fit()`` returns.

        Args:
            record: The job's record.
            tie: The connection to the supervisor that ties the job to this process, or None. The job is stopped when
                the connection closes.
            process: The supervisor's process, or None if another process started the supervisor.
        """
        self.record = record
        self._tie = tie
        self._process = process
        #: The number of events of the record that callbacks do not get, because they were there before resume().
        self._known = 0
        #: The number of the notebook's cell whose pane shows the job's table.
        self._shown_in: int | None = None

    @classmethod
    def attach(cls, name: str, home: str | Path | None = None) -> TrainingJob:
        """Return the handle of a job that has a record on this machine. Any process may have started the job.

        ``Estimator.attach(name, dispatcher=…)`` also finds a job that was started from another machine.

        Raises:
            JobNotFoundError: the job does not exist. The message suggests the most similar job name.
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

    def _repr_html_(self) -> str | None:
        from estimators.client.notebook import this_cell
        from estimators.results.display import job_html

        if self._shown_in is not None and self._shown_in == this_cell():
            return None  # a cell that ends in fit() already shows the table
        return job_html(self.result())

    # --- properties ---

    @property
    def name(self) -> str:
        """Return the job's name."""
        return self.record.name

    @property
    def status(self) -> TrainingJobStatus:
        """Return the job's status, such as ``InProgress``.

        The status can be compared with a text: ``job.status == "Completed"``.

        Raises:
            RecordError: a newer version of fleetfit wrote a status that this version does not know.
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
        """Return the secondary status, which is more detailed than :attr:`status`, such as ``Downloading``.

        The result is a plain string if a newer version of fleetfit wrote a status that this version does not know.
        """
        value = str(self._status()["SecondaryStatus"])
        try:
            return SecondaryStatus(value)
        except ValueError:
            return value

    @property
    def failure(self) -> Failure | None:
        """Return the failure as an object with its cause, host and rank, or None if the job did not fail."""
        return statuses.failure_of(self._status())

    @property
    def warnings(self) -> list[str]:
        """Return the warnings about the job, including the warnings from before its start."""
        return list(self._status().get(statuses.OWN, {}).get("warnings") or [])

    @property
    def hosts(self) -> list[str]:
        """Return the names of the hosts in the order of their ranks.

        For an elastic job, return only the current hosts.
        """
        there = [str(host["name"]) for host in self.membership if host["state"] not in ("gone", "spare")]
        if there:
            return sorted(there, key=natural_key)
        count = (self.record.read_request().get("ResourceConfig") or {}).get("InstanceCount") or 0
        planned = {f"algo-{number}" for number in range(1, int(count) + 1)}
        return sorted(planned | set(self.record.hosts), key=natural_key)

    @property
    def model_data(self) -> str | None:
        """Return the path or URI of the model (``model.tar.gz``), or None if the job has no model yet."""
        return outputs.model_data(self.record)

    @property
    def checkpoints(self) -> str:
        """Return the path or URI of the checkpoints.

        The result is the job's ``checkpoint_s3_uri``. If the job has no ``checkpoint_s3_uri``, the result is a folder
        in the job's record.
        """
        return outputs.checkpoints(self.record)

    def describe(self) -> dict[str, Any]:
        """Return a description of the job that has the members of SageMaker's DescribeTrainingJob response.

        Times are seconds since the epoch. Secrets are replaced by ``***``. The key ``Fleetfit`` contains values that
        SageMaker's response lacks, such as the failure, the warnings and the attempt.
        """
        from estimators.job.secrets import mask_request

        request = self.record.read_request()
        answer = {name: value for name, value in request.items() if name not in _NOT_DESCRIBED}
        return mask_request({**answer, **self._status()})

    @property
    def phases(self) -> dict[str, float | None]:
        """Return the duration of each phase in seconds. If the duration of a phase is unknown, its value is None.

        The phases are ``launch``, ``import``, ``rendezvous``, ``first_step``, ``training`` and ``teardown``.
        """
        return phases(self.record.events())

    def metrics(self, kind: str = "script") -> pandas.DataFrame:
        """Return every recorded value of every metric as a table.

        The columns are ``time``, ``elapsed_s``, ``attempt``, ``rank``, ``name``, ``value`` and ``host``. ``elapsed_s``
        is the time since the job's creation, in seconds.

        Args:
            kind: ``"script"`` selects the metrics of the script. ``"system"`` selects CPU and memory of each rank, and
                network and GPUs of each host.

        Raises:
            ConfigurationError: the kind is unknown.
        """
        if kind not in METRIC_KINDS:
            raise ConfigurationError(unknown("kind of metrics", kind, METRIC_KINDS))
        events = self.record.events("metric" if kind == "script" else "resources")
        found = events if kind == "script" else system_metrics(events)
        return metrics_frame(found, start=self._status().get("CreationTime"))

    def result(self) -> Result:
        """Return the result of the job: its status, durations and metrics.

        While the job runs, the result contains the values so far. After the job's end, the result is read from the
        record.
        """
        from estimators.results import saving

        return saving.result_of(self.record)

    def value(self) -> Any:
        """Wait until the job has ended, and return the value that the job's function returned on rank 0.

        If the value is a path in the job's model or output folder, the result is the path of a local copy.

        Raises:
            ConfigurationError: the entry point is a script, which returns no value.
            TrainingJobError: the job failed for another reason than an exception in the function.
            RecordError: the job was stopped before the function returned a value, or this process cannot unpickle the
                value.
            Exception: the exception that the function raised on a host. The exception's cause shows the traceback of
                that host.
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
        """Return whether the job runs on SageMaker or on a dispatcher.

        Such a job continues if this machine is switched off.
        """
        return statuses.lives_elsewhere(self.record.stored_status())

    @property
    def dispatcher(self) -> str | None:
        """Return the name of the dispatcher, the machine that runs the job's supervisor.

        Return None without a dispatcher.
        """
        found = self.record.read_options().get("dispatcher")
        return str(found) if found is not None else None

    def _ensure_followed(self, env: Mapping[str, str] | None = None) -> None:
        """Start a local supervisor for a job on SageMaker or on a dispatcher if no local supervisor is running.

        The local supervisor copies the job's progress into the local record. Wait for the first copy, at most 15
        seconds. For a job on this machine, or a job that has ended, do nothing.

        Args:
            env: The environment of the new supervisor. The default is the environment of this process.

        Raises:
            BackendError: the supervisor cannot be started.
        """
        stored = self.record.stored_status()
        if not statuses.lives_elsewhere(stored) or statuses.is_terminal(stored or {}) or self.record.is_supervised():
            return
        taken = JobRecord(self.record.path)
        if not taken.lock():
            return  # another process is starting the supervisor
        try:
            self._process = launch.start(taken, env)
        finally:
            taken.release()
        until = time.monotonic() + _FIRST_NEWS_SECONDS
        seen = statuses.last_seen(stored)
        while statuses.last_seen(self.record.stored_status()) == seen and self.record.is_supervised():
            if time.monotonic() > until:
                break
            time.sleep(_POLL_SECONDS / 2)

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
            self._process.poll()  # reaps a supervisor that has exited
        return self.record.read_status()

    # --- logs ---

    def logs(self, rank: int | None = None, follow: bool = False, all: bool = False) -> None:
        """Print the logs.

        TensorFlow's start-up lines are hidden, and a line that several ranks print is shown once.

        Args:
            rank: The rank whose lines are printed. With None, the lines of all processes are printed.
            follow: Whether to continue until the job ends. An interrupt stops only the printing, and the job continues.
            all: Whether to show every line.

        Raises:
            ConfigurationError: the job does not have the rank.
        """
        printer = self._printer(all=all, one_rank=rank is not None)
        for lines in self._portions(rank, follow):
            printer.print(lines)
        printer.finish()

    def log_lines(self, rank: int | None = None, follow: bool = False) -> Iterator[LogLine]:
        """Yield the job's log lines as :class:`LogLine` objects, in the order of their times.

        Args:
            rank: The rank whose lines are yielded. With None, the lines of all processes are yielded.
            follow: Whether to continue until the job ends.

        Raises:
            ConfigurationError: the job does not have the rank.
        """
        for lines in self._portions(rank, follow):
            yield from lines

    def _check_rank(self, rank: int) -> None:
        """Check that the job has the given rank.

        Raises:
            ConfigurationError: the job does not have the rank.
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
            yield []  # the printer then shows the lines that it has held back long enough
            time.sleep(_POLL_SECONDS)

    def _printer(
        self, stream: IO[str] | None = None, *, all: bool = False, one_rank: bool = False, waits: bool = False
    ) -> LogPrinter:
        """Return a printer for the job's log lines.

        Args:
            stream: The stream. The default is standard output.
            all: Whether every line is shown.
            one_rank: Whether the lines of a single rank are printed.
            waits: Whether the caller will raise the job's failure as an error that contains the script's traceback. If
                so, the printer omits this traceback.
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

    # --- stopping ---

    def stop(self, wait: bool = False, *, grace: float | None = None) -> None:
        """Request that the job stops. The script receives SIGTERM, and has time to save its state.

        With ``wait=True``, also wait until the job has ended. If the job has already ended, do nothing.

        Args:
            wait: Whether to wait until the job has ended.
            grace: The time that the script has to save its state, in seconds. The default is the job's ``stop_grace``
                (120 s).

        Raises:
            ConfigurationError: ``grace`` is not a number of seconds.
            UnsupportedError: ``grace`` was given for a job on SageMaker, where every script has 120 s.
            JobUnreachableError: the job's supervisor does not respond, or does not stop the job.
        """
        if grace is not None:
            rules.seconds(0, MAX_SECONDS)("stop(grace=…)", grace)
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
        """Return the present and former hosts of an elastic job, whose hosts can join and leave.

        For any other job, the list is empty.

        Each host has a ``name``, a ``state`` and ``ranks``. The state is ``starting``, ``ready``, ``leaving``, ``gone``
        or ``spare``.
        """
        noted = self._status().get(statuses.OWN, {}).get("hosts")
        return [dict(host) for host in noted] if isinstance(noted, list) else []

    def add_hosts(self, count: int = 1) -> list[str]:
        """Start more hosts for an elastic job.

        The present hosts continue to train until the new hosts are ready to join.

        Args:
            count: The number of hosts to add.

        Returns:
            The names of the new hosts.

        Raises:
            ConfigurationError: the job cannot have that many hosts, or is not elastic.
            JobUnreachableError: the job's supervisor does not answer.
        """
        return [str(name) for name in self._ask({"op": "add_hosts", "count": count})["hosts"]]

    def remove_host(self, name: str) -> None:
        """Request that a host leaves an elastic job.

        The other hosts continue without this host as soon as they notice the change.

        Args:
            name: The host's name, such as ``algo-2``.

        Raises:
            ConfigurationError: the host does not exist, too few hosts would be left, or the job is not elastic.
            JobUnreachableError: the job's supervisor does not answer.
        """
        self._ask({"op": "remove_host", "host": name})

    def interrupt(self, name: str, notice_s: float = 120.0) -> None:
        """Simulate a spot interruption of a host of an elastic job.

        The host receives a notice, and leaves the job. If the host is still in the job ``notice_s`` seconds after the
        notice, the host is killed.

        Args:
            name: The host's name.
            notice_s: The time from the notice to the kill, in seconds.

        Raises:
            ConfigurationError: the host does not exist, or the job is not elastic.
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

    # --- resuming ---

    def resume(
        self, wait: bool = True, logs: bool = True, callbacks: Callbacks = None, *, all: bool = False
    ) -> TrainingJob:
        """Start another attempt of a job that failed, was stopped, or lost its supervisor.

        The attempt uses the same record. Scripts continue from their last checkpoint. The number of failures so far and
        the running time that ``max_run`` limits start again at 0.

        Args:
            wait: Whether to wait until the job ends. With True, the job is stopped if this process ends.
            logs: Whether to show the job's output while waiting, as for :meth:`wait`.
            callbacks: The callbacks, as for :meth:`wait`.
            all: Whether to show every line, as for :meth:`logs`.

        Returns:
            A new handle of the job.

        Raises:
            ConfigurationError: the job is running, the job has completed, or an argument is wrong.
            BackendError: the job cannot be started.
            TrainingJobError: the job failed again (only with ``wait=True``).
        """
        _check_shown("resume", logs, all)
        known = sum(1 for _ in self.record.events())
        job = TrainingJob(*launch.resume(JobRecord(self.record.path), attached=wait))
        job._known = known
        if wait:
            job.wait(logs=logs, callbacks=callbacks, all=all)
        return job

    # --- waiting ---

    def wait(
        self, logs: bool = True, timeout: float | None = None, callbacks: Callbacks = None, *, all: bool = False
    ) -> None:
        """Wait until the job has ended.

        An interrupt is Ctrl-C or a notebook's stop button. If ``fit(wait=True)`` or ``resume(wait=True)`` in this
        process started the job, an interrupt stops the job. The script has ``interrupt_grace`` seconds (5 s by default)
        to save its state. A second interrupt ends the job at once. When the job has ended, KeyboardInterrupt is raised.

        Any other job, such as a job on SageMaker, continues after an interrupt, and KeyboardInterrupt is raised at
        once.

        Args:
            logs: Whether to print the logs, and a table with the job's result at the end.
            timeout: The maximum time to wait, in seconds. After this time, TimeoutError is raised and the job
                continues. With None, the time is not limited.
            callbacks: An :class:`estimators.callbacks.Callback`, or a list of callbacks.
            all: Whether to print every line, as for :meth:`logs`.

        Raises:
            ConfigurationError: ``callbacks`` contains an object that is not a callback, or another argument is wrong.
            TrainingJobError: the job failed.
            KeyboardInterrupt: the waiting was interrupted, as described above.
            BrokenPipeError: the program that reads this process's standard output has closed the pipe. If the job was
                tied to this process, the job was stopped.
            TimeoutError: the job has not ended after ``timeout`` seconds.
        """
        _check_shown("wait", logs, all)
        checked = check_callbacks(callbacks)
        deadline = time.monotonic() + timeout if timeout is not None else None
        self._ensure_followed()
        with Interrupts() as interrupts:
            output = JobDisplay(self, sys.stdout if logs else None, all=all)
            feed = EventFeed(self, checked, output, self._known)
            try:
                if logs and not self._is_over():
                    output.message(self._opening())
                Wait(self, output, feed, interrupts, deadline).run()
            except (TimeoutError, KeyboardInterrupt, BrokenPipeError):
                raise
            except BaseException:
                # After any other error in this process, stop a tied job, which must not continue without the process
                # that waits for it.
                if self._tie is not None and not self._tie.ended:
                    self._tie.send(ipc_client.stop_message(self._interrupt_grace(), "its caller failed"))
                raise
            finally:
                output.close()
        status = self._status()
        if status["TrainingJobStatus"] == TrainingJobStatus.FAILED:
            failure = statuses.failure_of(status)
            unknown = Failure(cause=Cause.INTERNAL, message="unknown")
            # The tail of other failures is not of the script's output, but of a log that the user has not seen.
            seen = logs and output.pane is None and failure is not None and failure.cause is Cause.PROCESS
            raised = TrainingJobError(self, failure or unknown, tail=not seen)
            raise raised from self._raised_by_function(failure)
        output.table()

    def _raised_by_function(self, failure: Failure | None) -> BaseException | None:
        """Return the exception with which the user's function failed on a host, as the cause of the job's error.

        Return None if the entry point is not a function, or if the exception is unknown.
        """
        from estimators.client.functions import values

        return values.exception_of(self.record, failure) if values.is_function(self.record) else None

    def _opening(self) -> str:
        """Return the line that describes the job at the beginning of the output.

        The line shows that the job has started, because the script may not print anything for a while.
        """
        spec = TrainingJobSpec.from_request(self.record.read_request())
        strategy = spec.strategy
        shape = f"{spec.instance_count} host{'s' if spec.instance_count > 1 else ''}"
        if strategy is not None:
            per_host = strategy.ranks_per_host
            shape += f" × {per_host} process{'es' if per_host > 1 else ''}, {strategy.name}"
        return f"training job {self.name}: {shape}, on {spec.instance_type}"

    def _interrupt_grace(self) -> float:
        return float(self.record.read_options().get("interrupt_grace", 5.0))

    def _is_over(self) -> bool:
        """Return whether the job has ended, according to the record.

        If the job is tied to this process, the result is False until the supervisor has closed the connection.
        """
        if self._tie is not None and not self._tie.ended:
            return False
        return statuses.is_terminal(self._status())

    def _reap(self) -> None:
        if self._tie is not None:
            self._tie.close()
        if self._process is not None:
            self._process.poll()  # a later call reaps a supervisor that is still completing the provenance


def _check_shown(where: str, logs: Any, every: Any) -> None:
    """Raise an error if ``logs`` or ``all`` is not a boolean. Only ``fit()`` accepts texts, such as ``logs="All"``."""
    if not isinstance(logs, bool):
        raise rules.refuse(f"{where}(logs=…)", "True or False", logs, "To show every line, use all=True")
    rules.boolean(f"{where}(all=…)", every)
