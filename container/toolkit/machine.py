"""Decide what a host does next for a job: :class:`HostMachine` gets events, and returns actions.

The class is pure: it has no process, socket or clock. :class:`container.toolkit.host.HostRuntime` passes every event on
the host and its time to this class, and performs the returned actions.
:class:`container.toolkit.coordinator.Coordinator` makes the decisions for all hosts.

When one process fails, other processes end as a consequence, and their ends may be detected before the cause. Therefore
an end that may be a consequence is reported only after a delay (:func:`patience`). If the cause is reported during the
delay, the cause ends the job, and the consequence is not reported.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Collection, Mapping
from typing import Any, TypeAlias

from container.contract.environment import Environment
from container.contract.failures import Cause, Failure, describe_end
from container.contract.frozen import dataclass
from container.contract.hints import Situation
from container.contract.messages import Message
from container.contract.plan import Plan, ProcessPlan, Role, StartedBy
from container.contract.strategies import Distribution, ParameterServer
from container.toolkit import reports
from container.toolkit.mpi import daemons
from container.toolkit.process_group import ClusterProcess
from container.toolkit.runtime import FAILURE_GRACE, HostSettings, Outcome

# All of these times are in seconds.

#: How long to wait for a process to exit after it has reported an uncaught exception. The exit may hang, because a
#: library's exit handler may wait for other ranks.
EXCEPTION_GRACE = 0.25
#: How long to wait for a report of the cause, if a rank's failure indicates that a different rank is the cause.
CONSEQUENCE_GRACE = 0.5
#: How long algo-1 waits for the last messages of the other hosts, and how long these hosts wait for algo-1's decision.
#: Also how long mpirun may take to end, on a busy machine, after it has ended its ranks.
FAREWELL = 3.0
#: How long to wait for a rank's report after an error of mpirun. A rank's report explains more than mpirun's error.
LAUNCHER_GRACE = 0.3
#: How long to wait for the cause after mpirun's daemon (orted) has failed. Mostly, mpirun's end is the cause.
DAEMON_GRACE = 1.0
#: How long after rank 0's end the toolkit prints a message if other ranks still run.
REMARK_AFTER = 10.0


class HostStage(enum.Enum):
    """The stage of the job on this host."""

    STARTING = "starting"
    RUNNING = "running"
    DONE = "done"  # the host's ranks have ended, or only serve other ranks
    STOPPING = "stopping"
    OVER = "over"


# --- events ---


class PlainEvent(enum.Enum):
    """Events that need no data."""

    MASTER_HEARD = enum.auto()  # algo-1 has accepted the connection, or reports that it waits for other hosts
    STOP = enum.auto()  # algo-1 requests that all hosts stop; the ranks get time to save
    FINISH = enum.auto()  # algo-1 reports that the job has succeeded, or that all hosts have stopped
    STOP_ASKED = enum.auto()  # this host is requested to stop all hosts; a second request ends this host at once
    END_ASKED = enum.auto()  # this host is requested to end without a grace period
    IMPORTING = enum.auto()  # a process waits for its importer
    IMPORTER_HEARD = enum.auto()  # the importer of this host's ranks has sent a message
    SERVING = enum.auto()  # a process has reported that it now only serves other processes
    START_CHECK = enum.auto()  # the time limit for the start of all ranks has passed
    GRACE_OVER = enum.auto()  # the ranks' time to save has passed
    RANK_0_ENDED = enum.auto()  # rank 0 ended REMARK_AFTER seconds ago
    TIME_UP = enum.auto()  # HostMachine.next_deadline has been reached


@dataclass(frozen=True)
class Prepared:
    """The event that the preparation of this host is done.

    Attributes:
        members: The host's processes by name. The caller updates the mapping and its values while the job runs.
        ports: The ports that are reserved for this host.
    """

    members: Mapping[str, ClusterProcess]
    ports: tuple[int, ...] = ()


@dataclass(frozen=True)
class Go:
    """The event that all hosts are ready. The plan contains the processes to start."""

    plan: Plan


@dataclass(frozen=True)
class MasterLost:
    """The event that the connection to algo-1 is lost."""

    reason: str


@dataclass(frozen=True)
class OfProcess:
    """Base class of events about a process."""

    member: ClusterProcess


class ProcessStarted(OfProcess):
    """The event that a process has started."""


class Raised(OfProcess):
    """The event that a process has reported an uncaught exception."""


class ProcessEnded(OfProcess):
    """The event that a process has ended."""


class Unexplained(OfProcess):
    """The event that no other failure has explained the end or the exception of a process in time."""


@dataclass(frozen=True)
class OfFailure:
    """Base class of events about a possible failure."""

    failure: Failure


class HostFailed(OfFailure):
    """The event that this host has failed."""


class Reported(OfFailure):
    """The event that a failure of this host has been reported to algo-1."""


class RankDiverged(OfFailure):
    """The event that a rank's metric shows that the training has diverged."""


class Suspected(OfFailure):
    """The event that this host may have failed. It is ignored if the host's ranks are done or are being stopped."""


class ShellGone(OfFailure):
    """The event that one of mpirun's remote shells, which mpirun runs in place of ssh, has ended before its daemon."""


class ShellUnexplained(OfFailure):
    """The event that no other failure has explained the end of a remote shell in time."""


class JobFailed(OfFailure):
    """The event that the job has failed."""


Event: TypeAlias = PlainEvent | Prepared | Go | MasterLost | OfProcess | OfFailure

# --- actions ---


@dataclass(frozen=True)
class TellSupervisor:
    """The action to send an event to the supervisor."""

    kind: str
    data: Mapping[str, Any]
    rank: int | None = None


@dataclass(frozen=True)
class Say:
    """The action to print a line."""

    text: str


@dataclass(frozen=True)
class TellMaster:
    """The action to send a message to algo-1, which may be this host."""

    message: Message


@dataclass(frozen=True)
class Fail:
    """The action to report a failure of this host to algo-1. If the script has written a text into ``output/failure``,
    the text replaces the failure's message.

    The event :class:`Reported` follows.
    """

    failure: Failure


@dataclass(frozen=True)
class Revive:
    """The action to restart a process."""

    process: ProcessPlan
    count: int


@dataclass(frozen=True)
class BlameImporter:
    """The action to report a failure, because the process that imports packages for these ranks (the importer) has been
    silent for too long.
    """

    ranks: tuple[str, ...]


@dataclass(frozen=True)
class Over:
    """The action to record the job's outcome and end this host's processes. ``grace`` is the time between SIGTERM and
    SIGKILL in seconds.
    """

    outcome: Outcome
    grace: float


class PlainAction(enum.Enum):
    """Actions that need no data."""

    LAUNCH = enum.auto()
    STOP_RANKS = enum.auto()
    SAY_WHO_RUNS = enum.auto()


Action: TypeAlias = TellSupervisor | Say | TellMaster | Fail | Revive | BlameImporter | Over | PlainAction


def is_daemon(member: ClusterProcess) -> bool:
    """Return whether a process is one of mpirun's daemons. mpirun itself also has the role ``LAUNCHER``, but is no
    daemon.
    """
    return member.role is Role.LAUNCHER and member.name in daemons.DAEMONS


def may_restart(member: ClusterProcess, plan: Plan | None, strategy: Distribution | None, limit: int) -> bool:
    """Return whether a failed process is restarted instead of failing the job. This applies only to a worker of
    TensorFlow's coordinator that a signal has killed, in a job with several hosts.

    The coordinator notices that a worker has ended, and gives the worker's tasks to the other workers. When the worker
    serves at its address again, the coordinator uses it again. A coordinator or a parameter server cannot be restarted,
    because its state is stored nowhere else.

    Args:
        member: The failed process.
        plan: The job's plan.
        strategy: The job's strategy.
        limit: The maximum number of times a process may be restarted.
    """
    coordinated = isinstance(strategy, ParameterServer) and strategy.coordinated
    killed = member.signal is not None and member.exception is None and not member.told
    alone = plan is None or len(plan.membership.hosts) == 1  # no other host would continue meanwhile
    return coordinated and killed and not alone and member.name == "worker" and member.revivals < limit


def patience(member: ClusterProcess, *, by_mpirun: bool) -> float:
    """Return for how many seconds the report of a failed process is delayed, because a different failure may be the
    cause.

    Args:
        member: The failed process.
        by_mpirun: Whether mpirun has started the process.
    """
    if member.role is Role.LAUNCHER and member.signal is not None:
        return 0.0
    if is_daemon(member):
        return DAEMON_GRACE
    if member.role is Role.LAUNCHER:
        # The toolkit on the daemon's host reports why the daemon ended. It first waits to see whether mpirun's end was
        # the cause.
        return 2 * DAEMON_GRACE if reports.has_lost_daemon(member) else LAUNCHER_GRACE
    if by_mpirun and member.told and not member.raised:
        return FAREWELL  # mpirun is ending its ranks; mpirun, or the rank that failed first, reports the cause
    if by_mpirun and member.vanished:
        return 2 * LAUNCHER_GRACE  # mpirun's end ends its daemons, and their end ends the wrappers
    return CONSEQUENCE_GRACE if reports.is_consequence(member) else 0.0


@dataclass(frozen=True)
class _Deadline:
    at: float
    event: Event


class HostMachine:
    """Decide what a host does next for a job.

    Args:
        environment: The job as this host sees it.
        settings: The backend's settings.
        remote_shells: The remote shells that wait for mpirun's daemons on other hosts. The caller updates the
            collection while the job runs.

    Attributes:
        state: The stage of the job on this host.
    """

    def __init__(
        self, environment: Environment, settings: HostSettings, remote_shells: Collection[object] = ()
    ) -> None:
        self.state = HostStage.STARTING
        self._env = environment
        self._settings = settings
        self._host = environment.current_host
        self._remote_shells = remote_shells
        self._master_silent = MasterLost(f"it has not answered for {settings.start_timeout:g} s")
        self._members: Mapping[str, ClusterProcess] | None = None
        self._ports: tuple[int, ...] = ()
        self._plan: Plan | None = None
        self._asked_to_stop = False
        self._all_started = False
        self._importer_heard = 0.0
        self._deadlines: list[_Deadline] = []
        self._actions: list[Action] = []
        self._now = 0.0

    @property
    def runs(self) -> bool:
        """Return whether the job has been started on this host, and is not being stopped or ended."""
        return self.state in (HostStage.RUNNING, HostStage.DONE)

    @property
    def next_deadline(self) -> float | None:
        """Return the time at which :attr:`PlainEvent.TIME_UP` is due next. Return None if no deadline is set."""
        return min((deadline.at for deadline in self._deadlines), default=None)

    def handle(self, event: Event, now: float) -> list[Action]:
        """Handle an event, and return the resulting actions.

        Args:
            event: The event.
            now: The time of the event, in seconds of a monotonic clock.
        """
        self._actions, self._now = [], now
        self._take(event)
        return self._actions

    def _take(self, event: Event) -> None:
        match event:
            case PlainEvent():
                self._take_happening(event)
            case OfProcess(member):
                self._take_process(event, member)
            case OfFailure(failure):
                self._take_failure(event, failure)
            case Prepared(members, ports):
                self._members, self._ports, self._importer_heard = members, ports, self._now
                self._do(TellMaster({"op": "ready", "ports": list(ports)}))
            case Go(plan):
                self._go(plan)
            case MasterLost(reason):
                self._lose_master(reason)

    def _take_happening(self, event: PlainEvent) -> None:
        match event:
            case PlainEvent.MASTER_HEARD:
                self._await_master()
            case PlainEvent.STOP:
                self._stop()
            case PlainEvent.FINISH:
                self._finish()
            case PlainEvent.STOP_ASKED:
                self._ask_to_stop()
            case PlainEvent.END_ASKED:
                self._over(Outcome(stopped=True), 0.0)
            case PlainEvent.IMPORTING:
                self._tell_all_started()
            case PlainEvent.IMPORTER_HEARD:
                self._importer_heard = self._now
            case PlainEvent.SERVING:
                self._check_done()
            case PlainEvent.START_CHECK:
                self._check_started()
            case PlainEvent.GRACE_OVER:
                self._grace_is_over()
            case PlainEvent.RANK_0_ENDED:
                if self.runs:
                    self._do(PlainAction.SAY_WHO_RUNS)
            case PlainEvent.TIME_UP:
                self._time_up()

    def _take_process(self, event: OfProcess, member: ClusterProcess) -> None:
        match event:
            case ProcessStarted():
                self._started(member)
            case Raised():
                self._raised(member)
            case ProcessEnded():
                self._ended(member)
            case Unexplained():
                self._blame(member)

    def _take_failure(self, event: OfFailure, failure: Failure) -> None:
        match event:
            case HostFailed():
                self._fail(failure)
            case RankDiverged() if self.runs:
                self._fail(failure)
            case Suspected() if self.state is HostStage.RUNNING:
                self._fail(failure)
            case Reported() if not self._env.is_master:
                # algo-1's decision takes a millisecond; if it does not arrive, this host ends nevertheless.
                self._later(FAREWELL, JobFailed(failure))
            case ShellGone():
                self._later(LAUNCHER_GRACE, ShellUnexplained(failure))
            case ShellUnexplained():
                # If mpirun had ended, all remote shells would have ended. If some still wait, this shell alone was
                # killed.
                self._later(0.0 if self._remote_shells else FAREWELL, Suspected(failure))
            case JobFailed():
                self._over(Outcome(failure=failure))

    def _do(self, action: Action) -> None:
        self._actions.append(action)

    def _tell(self, kind: str, rank: int | None = None, **data: Any) -> None:
        self._do(TellSupervisor(kind, data, rank))

    # --- time ---

    def _later(self, seconds: float, event: Event) -> None:
        self._deadlines.append(_Deadline(self._now + seconds, event))

    def _time_up(self) -> None:
        while (at := self.next_deadline) is not None and at <= self._now:
            deadline = next(one for one in self._deadlines if one.at == at)
            self._deadlines.remove(deadline)
            self._take(deadline.event)

    def _cancel(self, event: Event) -> None:
        self._deadlines = [deadline for deadline in self._deadlines if deadline.event != event]

    # --- the start ---

    def _await_master(self) -> None:
        """Restart the time limit for the next message of algo-1. After the limit, algo-1 counts as lost. The limit
        applies only while this host waits for the other hosts.
        """
        self._cancel(self._master_silent)
        if self.state is HostStage.STARTING:
            self._later(self._settings.start_timeout, self._master_silent)

    def _go(self, plan: Plan) -> None:
        if self.state is not HostStage.STARTING:
            return
        self._cancel(self._master_silent)
        self.state = HostStage.RUNNING
        self._plan = plan
        self._tell("phase", name="cluster_ready")
        self._do(PlainAction.LAUNCH)
        self._later(self._settings.start_timeout, PlainEvent.START_CHECK)

    @property
    def _ranks(self) -> list[ClusterProcess]:
        return [member for member in (self._members or {}).values() if member.role is Role.RANK]

    def _tell_all_started(self) -> None:
        """Report that all ranks have been started, unless a rank is still missing or this was reported before.

        A rank that waits for its importer counts as started.
        """
        if not self._all_started and all(rank.pid is not None or rank.waits_for_importer for rank in self._ranks):
            self._all_started = True
            self._tell("phase", name="ranks_started")

    def _started(self, member: ClusterProcess) -> None:
        self._tell("process_started", member.rank, name=member.name, pid=member.pid)
        if self.state is HostStage.STOPPING:
            self._do(PlainAction.STOP_RANKS)
        self._tell_all_started()

    def _check_started(self) -> None:
        if not self.runs:
            return
        limit = self._settings.start_timeout
        importing = tuple(rank.name for rank in self._ranks if rank.waits_for_importer)
        absent = [rank.name for rank in self._ranks if rank.pid is None and not rank.ended]
        if missing := [name for name in absent if name not in importing]:
            self._fail(
                Failure(
                    cause=Cause.TIMEOUT,
                    message=f"{', '.join(missing)} did not start within {limit:g} s.",
                    host=self._host,
                    hints=("mpirun's own output, under [mpirun], may say why.",),
                )
            )
        elif importing and (left := self._importer_heard + limit - self._now) > 0:
            # The imports may take any time, but the importer must keep sending messages.
            self._later(left, PlainEvent.START_CHECK)
        elif importing:
            self._do(BlameImporter(importing))

    # --- the end of processes ---

    def _raised(self, member: ClusterProcess) -> None:
        """Give a rank that has reported an uncaught exception a short time to end. If it does not, report a failure."""
        if member.raised and not member.ended:
            consequence = reports.is_consequence(member)
            if not consequence:
                self._do(TellMaster({"op": "raised", "process": member.name}))
            self._later(CONSEQUENCE_GRACE if consequence else EXCEPTION_GRACE, Unexplained(member))

    def _ended(self, member: ClusterProcess) -> None:
        self._cancel(Unexplained(member))
        if member.raised and not member.failed:
            self._do(TellMaster({"op": "survived", "process": member.name}))
        if member.role is Role.RANK:
            self._rank_ended(member)
        if self.state is HostStage.STOPPING:
            self._check_stopped()
        elif not self.runs:
            return
        elif not member.failed:
            self._check_done()
        elif may_restart(member, self._plan, self._env.strategy, self._settings.worker_restarts):
            self._revive(member)
        elif grace := patience(member, by_mpirun=self._is_by_mpirun(member)):
            self._later(grace, Unexplained(member))
        else:
            self._blame(member)

    def _rank_ended(self, member: ClusterProcess) -> None:
        how = {"exit_code": member.exit_code, "signal": member.signal, "max_rss_kb": member.max_rss_kb}
        self._tell("process_ended", member.rank, name=member.name, **how)
        if self._env.strategy is not None:
            self._do(TellMaster({"op": "evidence", "process": member.name, "data": {"ended": True}}))
        if all(rank.ended for rank in self._ranks):
            self._tell("phase", name="ranks_ended")
        if member.rank == 0 and self._plan is not None and self._plan.has_servers:
            self._later(REMARK_AFTER, PlainEvent.RANK_0_ENDED)

    def _is_by_mpirun(self, member: ClusterProcess) -> bool:
        assert self._plan is not None
        mine = self._plan.host(self._host).processes
        return any(process.name == member.name and process.started_by is StartedBy.MPIRUN for process in mine)

    def _revive(self, member: ClusterProcess) -> None:
        """Restart a killed worker of a job with parameter servers.

        Meanwhile, the chief (rank 0) continues with the other workers.
        """
        assert self._plan is not None
        count = member.revivals + 1
        how = describe_end(member.exit_code, member.signal)
        self._tell("worker_restarted", member.rank, name=member.name, how=how, count=count)
        self._do(Say(f"{member.name} {how}. fleetfit restarts it, and the chief continues"))
        mine = self._plan.host(self._host).processes
        self._do(Revive(next(process for process in mine if process.name == member.name), count))

    def _blame(self, member: ClusterProcess) -> None:
        """Report a failure, because a process has failed, or has raised an exception and does not end.

        If the end of mpirun's daemon has ended the process, the daemon is named as the cause.
        """
        if not self.runs:
            return
        daemon = next((one for one in (self._members or {}).values() if is_daemon(one) and one.ended), None)
        if member.vanished and daemon is not None:
            # If a daemon ended without an error, mpirun has requested this. mpirun's own end explains more, if it is
            # reported in time.
            self._later(0.0 if daemon.failed else FAREWELL, Suspected(self._launcher_failure(daemon)))
        elif member.role is Role.LAUNCHER:
            self._fail(self._launcher_failure(member))
        else:
            self._fail(reports.of_member(member, self._host, Situation.of(self._env)))

    def _launcher_failure(self, member: ClusterProcess) -> Failure:
        return reports.of_launcher(member, self._host, [rank.name for rank in self._ranks if rank.pid is None])

    def _check_done(self) -> None:
        """Report that this host is done, if mpirun and all ranks have ended successfully or only serve. Otherwise do
        nothing.
        """
        assert self._plan is not None and self._members is not None
        if self.state is not HostStage.RUNNING:
            return
        for member in self._members.values():
            only_serves = member.rank != 0 and self._plan.has_servers and member.role is Role.RANK and member.serving
            waited_for = member.role is Role.RANK or (member.role is Role.LAUNCHER and not is_daemon(member))
            if waited_for and not only_serves and (member.failed or not member.ended):
                return
        self.state = HostStage.DONE
        self._do(TellMaster({"op": "done"}))

    # --- the end of the job ---

    def _fail(self, failure: Failure) -> None:
        if self.state is HostStage.OVER:
            return
        if self._plan is not None:
            failure = reports.lost_ranks(failure, self._plan)
        if self._ports and failure.cause is Cause.PROCESS and reports.is_port_conflict(failure):
            failure = dataclasses.replace(failure, cause=Cause.PORT_TAKEN)
        self._do(Fail(failure))

    def _lose_master(self, reason: str) -> None:
        hint = f"See the log of {self._env.master} for the cause."
        message = f"{self._env.master} was lost: {reason}."
        self._over(Outcome(failure=Failure(cause=Cause.HOST_LOST, message=message, host=self._host, hints=(hint,))))

    def _ask_to_stop(self) -> None:
        if self._asked_to_stop:
            self._over(Outcome(stopped=True), 0.0)
        elif self.state is not HostStage.OVER and self._members is not None:
            self._do(TellMaster({"op": "stop"}))
        if not self._env.is_master or self._members is None:
            self._stop()
        self._asked_to_stop = True

    def _stop(self) -> None:
        if self.state in (HostStage.STOPPING, HostStage.OVER):
            return
        if self._members is None:  # still preparing: no process has anything to save
            self._over(Outcome(stopped=True))
            return
        self.state = HostStage.STOPPING
        self._cancel(self._master_silent)
        self._tell("phase", name="stopping")
        self._do(PlainAction.STOP_RANKS)
        self._later(self._settings.stop_grace, PlainEvent.GRACE_OVER)
        self._check_stopped()

    def _grace_is_over(self) -> None:
        if self.state is HostStage.STOPPING:
            self._do(Say(f"the ranks did not end within {self._settings.stop_grace:g} s of SIGTERM."))
            self._over(Outcome(stopped=True), 0.0)

    def _finish(self) -> None:
        stopped = self.state is HostStage.STOPPING
        # Parameter servers and their workers may still end by themselves.
        serving = self._plan is not None and self._plan.has_servers and not stopped
        self._over(Outcome(stopped=stopped), FAILURE_GRACE if serving else 0.0)

    def _check_stopped(self) -> None:
        if all(member.ended or member.pid is None for member in self._ranks):
            self._do(TellMaster({"op": "stopped"}))

    def _over(self, outcome: Outcome, grace: float = FAILURE_GRACE) -> None:
        """End the job on this host with an outcome, and stop the running processes.

        A later call does not change the outcome. A later call without a grace period ends the current grace period.
        """
        if self.state is not HostStage.OVER or grace == 0.0:
            self._do(Over(outcome, grace))
        self.state = HostStage.OVER
