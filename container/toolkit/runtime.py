"""Run a job's processes on one host: the code that is common to elastic jobs and to jobs with a fixed set of hosts."""

from __future__ import annotations

import abc
import signal
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from container.contract.environment import Environment
from container.contract.failures import Failure
from container.contract.frozen import dataclass
from container.contract.messages import Message
from container.contract.wire import TERMINATED, Event
from container.system.connection import ENDED, Connection
from container.system.loop import SelectorLoop
from container.toolkit import resources
from container.toolkit.hang_detector import ProgressWatch
from container.toolkit.output import Output
from container.toolkit.process_group import ClusterProcess, Gang, GangFollower

if TYPE_CHECKING:
    from container.toolkit.train import Preparation

#: Time between SIGTERM and SIGKILL when a job has failed, in seconds.
FAILURE_GRACE = 0.5


@dataclass(frozen=True, kw_only=True)
class HostSettings:
    """The backend's settings for a host.

    Attributes:
        token: The job's secret. None if there is no secret.
        control_fd: The descriptor of an inherited listening socket. None if no socket is inherited.
        control_address: The name or address, and the port, of algo-1's toolkit. None for algo-1's name and the fixed
            port.
        start_timeout: The time limit for the start of hosts and ranks, in seconds.
        stop_grace: The time between SIGTERM and SIGKILL when the job is stopped, in seconds.
        runtime_dir: The private folder for sockets and session files.
        hang_timeout: The time without any activity of a rank after which the job fails, in seconds. None for no limit.
        worker_restarts: The maximum number of times a killed worker of parameter servers is restarted while the others
            continue.
        importers: The folder of the machine's importers, the processes that import packages once and fork ranks. None
            for an importer that only this host uses.
        keep_alive: The time for which unused importers are kept, in seconds.
        kept_with: The pid of a process. When it ends, kept importers end, too. 0 for none.
        on_undistributed: The reaction if the ranks did not communicate with each other: ``warn`` or ``fail``.
        on_nan: The reaction if the script reports a NaN metric or an infinite loss: ``warn`` or ``fail``.
    """

    token: str | None
    control_fd: int | None
    control_address: tuple[str, int] | None
    start_timeout: float
    stop_grace: float
    runtime_dir: Path
    hang_timeout: float | None = None
    worker_restarts: int = 0
    importers: Path | None = None
    keep_alive: float = 0.0
    kept_with: int = 0
    on_undistributed: str = "warn"
    on_nan: str = "warn"


@dataclass(frozen=True)
class Outcome:
    """How a job ended on this host: it failed, it was stopped, or (by default) it succeeded."""

    failure: Failure | None = None
    stopped: bool = False


class Runtime(GangFollower, abc.ABC):
    """Run a job's processes on one host.

    Args:
        loop: The event loop.
        output: The object that writes lines and events for the supervisor.
        environment: The job as this host sees it.
        settings: The backend's settings.
    """

    def __init__(self, loop: SelectorLoop, output: Output, environment: Environment, settings: HostSettings) -> None:
        self._loop = loop
        self._output = output
        self._env = environment
        self._settings = settings
        self._host = environment.current_host
        self._gang: Gang | None = None
        self._outcome: Outcome | None = None
        self._finished = False
        self._watch = ProgressWatch(loop, output, environment, settings.hang_timeout, self)
        loop.add_signal_handler(signal.SIGTERM, self._terminated)
        loop.add_signal_handler(signal.SIGINT, self.end_now)

    def _terminated(self) -> None:
        self.tell(TERMINATED)  # the other hosts also stop, and this event shows which host was the first
        self.stop()

    @property
    def is_over(self) -> bool:
        """Return whether the job has ended on this host, or is being ended."""
        return self._outcome is not None

    @abc.abstractmethod
    def connect(self) -> None:
        """Start to connect to the process that decides for all hosts. Return without waiting for the connection."""

    @abc.abstractmethod
    def ready(self, preparation: Preparation, gang: Gang, ports: tuple[int, ...]) -> None:
        """Handle the end of the preparation. The host's processes can start as soon as the other hosts are ready.

        Args:
            preparation: The preparation of this host. The preparation makes the plan when the hosts of the job are
                known.
            gang: The object that starts this host's processes.
            ports: The ports that are reserved for this host.
        """

    @abc.abstractmethod
    def fail(self, failure: Failure) -> None:
        """Report a failure of this host."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Send SIGTERM to the ranks, whose scripts get ``stop_grace`` seconds to save. A second call ends the ranks at
        once.
        """

    @abc.abstractmethod
    def end_now(self) -> None:
        """Stop this host's processes without a grace period."""

    def follow(self, lifeline: int) -> None:
        """Start to handle the messages on the lifeline, the connection to the supervisor. Also start to measure the
        ranks' use of resources.

        When the lifeline ends, the supervisor has ended, and this host's processes are stopped.

        Args:
            lifeline: The descriptor of the lifeline. The runtime closes the descriptor.
        """
        Connection(self._loop, lifeline, self._instructed, self._lifeline_ended)
        # Only with a lifeline: a managed service has its own measurements, and would show ours as lines of the log.
        resources.ResourceSampler(self._loop, self).start()

    def _instructed(self, message: Message) -> None:
        match message["op"]:
            case "stop":
                self.stop()
            case "end":
                self.end_now()

    def _lifeline_ended(self, reason: str) -> None:
        if reason != ENDED:
            self._output.say(self._host, f"a message of the supervisor was not understood: {reason}.")
        if self._gang is not None:
            self._gang.is_followed = False
        self.abandoned()

    @abc.abstractmethod
    def abandoned(self) -> None:
        """Stop this host's processes after the end of the supervisor, the process that started the toolkit."""

    def run(self) -> Outcome:
        """Run until all of this host's processes have ended.

        Returns:
            How the job ended on this host.
        """
        while not self._finished:
            self._loop.run_once()
        assert self._outcome is not None
        if self._gang is not None:
            left = self._gang.kill()
            if left:
                self._output.say(self._host, f"processes {left} cannot be killed (uninterruptible sleep).")
            self._gang.close()
        self._farewell()
        return self._outcome

    def _farewell(self) -> None:
        """Send the last messages. No process is running any more when the method is called."""

    def _end_as(self, outcome: Outcome, grace: float = FAILURE_GRACE) -> None:
        """Record the outcome, unless an outcome is already recorded. End the running processes within ``grace``
        seconds, then stop the loop.
        """
        if self._outcome is None:
            self._outcome = outcome
        if self._gang is None or grace == 0.0:
            self._finish()
            return
        self._gang.signal_all(signal.SIGTERM)
        self._gang.release()
        self._loop.call_later(grace, self._finish)
        self._await_end()

    def _await_end(self) -> None:
        """Stop the loop before the end of the grace period if no process is running any more."""
        assert self._gang is not None
        if self._gang.all_ended:
            self._finish()
        elif not self._finished:
            self._loop.call_later(0.01, self._await_end)

    def _finish(self) -> None:
        self._finished = True

    # --- events of this host's processes ---

    def on_activity(self) -> None:
        self._watch.note_activity()

    def on_importer(self, message: Message) -> None:
        self.on_activity()
        if "importing" not in message:
            self.tell("importer", **message)

    @property
    @abc.abstractmethod
    def is_watched(self) -> bool:
        """Return whether processes are running that should make progress."""

    @abc.abstractmethod
    def tell_progress(self, kind: str, values: dict[str, Any]) -> None:
        """Send a message to the judge of the job's progress.

        Args:
            kind: ``progress`` if a rank of this host shows activity, or ``stacks``.
            values: Empty for ``progress``. For ``stacks``: ``places`` (where in its code each process waits, by
                process) and ``missing`` (the tensors that Horovod waits for, by missing rank).
        """

    @property
    def spared(self) -> Collection[int]:
        """Return the pids of the child processes that continue to run after the end of the toolkit."""
        return self._gang.spared if self._gang is not None else ()

    @property
    def members(self) -> list[ClusterProcess]:
        """Return this host's processes."""
        return list(self._gang.members.values()) if self._gang is not None else []

    def tell(self, kind: str, rank: int | None = None, **data: Any) -> None:
        """Send an event of this host, or of one of its ranks, to the supervisor."""
        self._output.event(Event(kind=kind, host=self._host, rank=rank, attempt=self._env.attempt, data=data))

    def _pass_on(self, values: Mapping[str, Any], *, rank: int | None) -> None:
        """Forward a process's report to the supervisor if the report is an event.

        Warnings of the hook are forwarded only for rank 0, because all ranks have the same warnings.
        """
        kind, data, time_ns = (values.get(name) for name in ("kind", "data", "time_ns"))
        if isinstance(kind, str) and isinstance(data, dict) and not (kind == "warning" and rank):
            stamp = {"time_ns": time_ns} if isinstance(time_ns, int) else {}
            self._output.event(
                Event(kind=kind, host=self._host, rank=rank, attempt=self._env.attempt, data=data, **stamp)
            )
