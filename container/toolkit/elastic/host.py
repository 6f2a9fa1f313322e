"""Run an elastic job's processes on one host: start workers when the supervisor requests it, and report how they end.

Unlike :class:`container.toolkit.host.HostRuntime`, this runtime does not communicate with other hosts. Hosts join and
leave, and only the supervisor decides what this means for the job. The supervisor sends its messages over the lifeline,
its connection to this host. In addition to the messages for every host, these are ``prepare`` (start a worker, which
waits for its rank), ``place`` (the variables that contain the worker's rank), ``end_worker``, ``signal`` (to a worker),
``dump`` (report where the workers are) and ``finish`` (the job is complete). The runtime reports the events
``host_ready``, ``worker_ready``, ``worker_ended``, ``progress`` (a worker makes progress) and ``stacks``.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

from container.contract import variables
from container.contract.elastic import split_worker
from container.contract.environment import Environment
from container.contract.failures import Cause, Failure
from container.contract.hints import Situation
from container.contract.membership import Membership
from container.contract.messages import Message
from container.contract.plan import ProcessPlan, Role
from container.system.loop import SelectorLoop
from container.toolkit import reports
from container.toolkit.output import Output
from container.toolkit.process_group import ClusterProcess, Gang
from container.toolkit.runtime import HostSettings, Outcome, Runtime

if TYPE_CHECKING:
    from container.toolkit.train import Preparation


#: How long a worker without a rank may take to end after SIGTERM, in seconds.
_END_GRACE = 0.5


class ElasticRuntime(Runtime):
    """Run an elastic job's processes on one host, as :class:`container.toolkit.host.HostRuntime` does for other jobs.

    Args:
        loop: The event loop.
        output: The object that writes lines and events for the supervisor.
        environment: The job as this host sees it.
        settings: The backend's settings.
    """

    def __init__(self, loop: SelectorLoop, output: Output, environment: Environment, settings: HostSettings) -> None:
        super().__init__(loop, output, environment, settings)
        self._command: tuple[str, ...] = ()
        self._workers: dict[str, str] = {}  # name of the process -> name of the worker
        self._stopping = False

    # --- methods that the toolkit's main program calls ---

    def connect(self) -> None:
        """Close the control socket, through which hosts would connect to each other. It is not needed, because this
        host communicates only with the supervisor, over the lifeline.
        """
        if self._settings.control_fd is not None:
            os.close(self._settings.control_fd)

    def ready(self, preparation: Preparation, gang: Gang, ports: tuple[int, ...]) -> None:
        """Report that this host is ready to start workers. See :meth:`Runtime.ready`."""
        self._gang = gang
        members = Membership.of([self._host])
        self._command = preparation.plan(members).host(self._host).processes[0].argv
        self.tell("phase", name="cluster_ready")
        self.tell("host_ready", **self._where(ports))
        self._watch.start()

    @property
    def is_watched(self) -> bool:
        return not self._stopping and self._outcome is None

    def tell_progress(self, kind: str, values: dict[str, Any]) -> None:
        self.tell(kind, **values)

    def _where(self, ports: tuple[int, ...]) -> dict[str, Any]:
        """Return additional data of the event ``host_ready``. A subclass overrides this method.

        Args:
            ports: The ports that are reserved for this host.
        """
        return {}

    def fail(self, failure: Failure) -> None:
        """Stop this host's processes, and report a failure."""
        self._end_as(Outcome(failure=failure))

    def stop(self) -> None:
        """Send SIGTERM to the workers, whose scripts can then save. After ``stop_grace`` seconds, kill the workers that
        still run.

        A second call kills the workers at once.
        """
        if self._stopping or self._gang is None:
            self.end_now()
            return
        self._stopping = True
        self._gang.stop_ranks()
        self._loop.call_later(self._settings.stop_grace, self.end_now)
        self._check_stopped()

    def end_now(self) -> None:
        """Stop this host's processes without a grace period."""
        self._end_as(Outcome(stopped=True), grace=0.0)

    def abandoned(self) -> None:
        """Stop this host's processes, because the supervisor has ended."""
        self._end_as(
            Outcome(failure=Failure(cause=Cause.HOST_LOST, message="the job's supervisor is gone.", host=self._host))
        )

    # --- messages of the supervisor ---

    def _instructed(self, message: Message) -> None:
        operation = message["op"]
        if operation == "prepare":
            self._prepare(str(message["worker"]), int(message["slots"]), bool(message.get("warm", True)))
        elif operation == "finish":
            self._end_as(Outcome())
        elif operation == "dump" and self._gang is not None:
            self._watch.dump_stacks(self._gang)
        elif operation in ("place", "end_worker", "signal"):
            self._instruct(str(message["worker"]), operation, message)
        else:
            super()._instructed(message)

    def _prepare(self, worker: str, slots: int, warm: bool) -> None:
        assert self._gang is not None
        _, slot, _ = split_worker(worker)
        name = f"worker {slot}"
        old = self._gang.members.get(name)
        if old is not None and not old.ended:
            self.tell("worker_ended", worker=worker, exit_code=None, signal=None, why="another worker has its place")
            return
        self._workers[name] = worker
        self._launch(name, slot, slots, "ready" if warm else "wait")

    def _launch(self, name: str, slot: int, slots: int, place: str) -> None:
        """Start a process that gets its rank later.

        Args:
            name: The name of the process.
            slot: The number of the slot.
            slots: The number of slots on this host.
            place: When the process gets its rank. ``"wait"``: before the script starts. ``"ready"``: when the script
                requests the rank.
        """
        assert self._gang is not None
        plan = ProcessPlan(
            name=name,
            host=self._host,
            role=Role.RANK,
            argv=self._command,
            environment={variables.PLACE: place, variables.LOCAL_SIZE: str(slots)},
            local_rank=slot,
        )
        try:
            self._gang.launch(plan)
        except OSError as error:
            self.fail(reports.not_started(error, self._host))

    def _instruct(self, worker: str, operation: str, message: Message) -> None:
        assert self._gang is not None
        member = self._member(worker)
        if member is None or member.ended:
            return
        if operation == "place":
            self._gang.place(member, {str(name): str(value) for name, value in message["environment"].items()})
        elif operation == "signal":
            member.told = True
            self._gang.signal(member, int(message["number"]))
        else:
            member.told = True
            gang = self._gang
            gang.signal(member, signal.SIGTERM)
            grace = float(message.get("grace", _END_GRACE))
            self._loop.call_later(grace, lambda: gang.signal(member, signal.SIGKILL))

    def _member(self, worker: str) -> ClusterProcess | None:
        assert self._gang is not None
        return next((self._gang.members[name] for name, known in self._workers.items() if known == worker), None)

    # --- processes ---

    def on_started(self, member: ClusterProcess) -> None:
        self.tell("process_started", name=member.name, pid=member.pid, worker=self._workers.get(member.name))

    def on_event(self, member: ClusterProcess, values: dict[str, Any]) -> None:
        if values.get("kind") == "worker_ready":
            values = {**values, "data": {"worker": self._workers.get(member.name)}}
        rank = values.get("rank")  # only the script knows the rank, because the rank changes
        self._pass_on(values, rank=rank if isinstance(rank, int) else None)

    def on_ended(self, member: ClusterProcess) -> None:
        assert self._gang is not None
        worker = self._workers.get(member.name)
        if worker is None:
            return
        failure = (
            reports.of_member(member, self._host, Situation.of(self._env))
            if member.failed and not member.told
            else None
        )
        self.tell(
            "worker_ended",
            worker=worker,
            exit_code=member.exit_code,
            signal=member.signal,
            max_rss_kb=member.max_rss_kb,
            failure=failure.to_dict() if failure is not None else None,
            consequence=reports.is_consequence(member),
            **self._more_of_end(member),
        )
        self._gang.release_one(member)
        if self._stopping:
            self._check_stopped()

    def _more_of_end(self, member: ClusterProcess) -> dict[str, Any]:
        """Return additional data of the event ``worker_ended``. A subclass overrides this method."""
        return {}

    def _check_stopped(self) -> None:
        assert self._gang is not None
        if all(member.ended or member.pid is None for member in self._gang.ranks):
            self._end_as(Outcome(stopped=True), grace=0.0)
