"""A host's share of a job, from "ready" to the last process's end.

The rules (who failed first, when it is over) are :class:`container.toolkit.coordinator.Coordinator`'s, on algo-1; this
class carries them out on one host, and reports. All waits have deadlines that name who did not answer.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import os
import signal
import time
from collections.abc import Callable
from typing import Any

from container.contract import diverging
from container.contract.environment import Environment
from container.contract.failures import REASON_LIMIT, Cause, Failure, describe_end, no_progress, unanswered
from container.contract.hints import Situation
from container.contract.membership import Membership
from container.contract.messages import Message
from container.contract.names import cut
from container.contract.plan import Plan, Role, StartedBy
from container.contract.wire import PROGRESS, STACKS
from container.launchers import membership_of
from container.launchers.mpi import RANK_PROGRAM
from container.system import processes
from container.system.connection import Connection
from container.system.loop import SelectorLoop, Timer
from container.system.progress import ProgressJudge
from container.toolkit import control, evidence, reports, worker_restart
from container.toolkit.coordinator import Coordinator
from container.toolkit.hang_detector import ProgressWatch
from container.toolkit.mpi import daemons, remotes
from container.toolkit.output import Output
from container.toolkit.process_group import Gang, Member
from container.toolkit.runtime import FAILURE_GRACE, HostSettings, Outcome, Runtime

#: How long an uncaught exception may take to become an exit: a library's exit handler may wait for other ranks.
EXCEPTION_GRACE = 0.25
#: How long the cause of a failure that says it is another rank's may take to become known.
CONSEQUENCE_GRACE = 0.5
#: How long algo-1 waits for the other hosts' last words, and they for its verdict.
FAREWELL = 3.0
#: mpirun's own error explains less than a rank's, whose report may still be under way.
_LAUNCHER_GRACE = 0.3
#: How often hosts that wait for each other say that they are there, in seconds.
_BEAT = 2.0
#: How long the other ranks may go on after rank 0 before that is remarked upon, in seconds.
_REMARK_AFTER = 10.0
#: orted that ends with an error is mostly a victim of mpirun's end.
_DAEMON_GRACE = 1.0


class ToolkitState(enum.Enum):
    """What this host is doing."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    OVER = "over"


class HostRuntime(Runtime):
    """Runs one host's share of a job.

    Args:
        loop: The loop that drives everything.
        output: Where lines and events go.
        environment: The job as this host sees it.
        settings: What the backend decided.
    """

    def __init__(self, loop: SelectorLoop, output: Output, environment: Environment, settings: HostSettings) -> None:
        super().__init__(loop, output, environment, settings)
        self._state = ToolkitState.STARTING
        self._plan: Plan | None = None
        self._planner: Callable[[Membership], Plan] | None = None
        self._ports: tuple[int, ...] = ()
        self._asked_to_stop = False
        self._told_started = False
        self._unsent: list[Message] = []
        self._exception_timers: dict[str, Timer] = {}
        self._done_sent = False
        self._coordinator: Coordinator | None = None
        self._server: control.Server | None = None
        self._client: control.Client | None = None
        self._began = time.monotonic()
        self._heard: dict[str, float] = {}
        self._deadline = self._began + settings.start_timeout
        self._requests: remotes.Requests | None = None
        answer = remotes.answer_by(self._report)
        if environment.is_master:
            self._coordinator = Coordinator(environment.hosts, self._tell)
            self._requests = remotes.Requests(
                self._host, environment.hosts, spawn=self._spawn_daemon, hung_up=self._remote_shell_gone
            )
            answer = self._requests.ended
        self._daemons = remotes.Daemons(
            self._host, settings.runtime_dir, environment.machine, answer=answer, failed=self._fail_if_running
        )
        self._watch = ProgressWatch(loop, output, environment, settings.hang_timeout, self._tell_progress)
        self._progress: ProgressJudge | None = None
        if self._coordinator is not None and settings.hang_timeout:
            self._progress = ProgressJudge(
                loop,
                settings.hang_timeout,
                expected=lambda: self._state is ToolkitState.RUNNING,
                hosts=lambda: environment.hosts,
                ask=lambda host: self._tell(host, {"op": "dump"}),
                give_up=self._no_progress,
            )

    # --- the connection between the hosts ---

    def connect(self) -> None:
        """Listen on algo-1, connect to it elsewhere. Nothing happens for a single host."""
        if len(self._env.hosts) == 1:
            if self._settings.control_fd is not None:
                os.close(self._settings.control_fd)
            return
        if self._coordinator is not None:
            if self._settings.control_fd is not None:
                listener = control.inherited_listener(self._settings.control_fd)
            else:
                address = self._settings.control_address
                listener = control.listen("", address[1] if address is not None else 0)
            self._server = control.Server(
                self._loop,
                listener,
                token=self._settings.token,
                expected=set(self._env.hosts[1:]),
                joined=self._coordinator.joined.add,
                received=self._from_host,
                lost=self._host_lost,
            )
        else:
            assert self._settings.control_address is not None
            self._client = control.Client(
                self._loop,
                self._settings.control_address,
                hello=self._host,
                token=self._settings.token,
                deadline=self._deadline,
                joined=self._connected,
                received=self._receive,
                lost=self._master_lost,
            )
        self._beat()

    def _beat(self) -> None:
        """Until all hosts run, say every now and then that we are there, and look who is not.

        Preparing may take long (requirements are installed), so it is silence that has a deadline.
        """
        if self._state is not ToolkitState.STARTING:
            return
        now = time.monotonic()
        limit = self._settings.start_timeout
        if self._server is not None:
            self._server.broadcast({"op": "gathering"})
            self._check_gathered(now)
        elif self._client is not None:
            if self._client.connected:
                self._client.send({"op": "preparing"})
            if self._client.connected and now - max(self._heard.get(self._env.master, 0.0), self._began) > limit:
                self._master_lost(f"it has not answered for {limit:g} s")
        self._loop.call_later(min(_BEAT, limit / 4), self._beat)

    def _connected(self) -> None:
        for message in self._unsent:
            self._report(message)
        self._unsent.clear()

    def _report(self, message: Message) -> None:
        """Say something to algo-1, which may be us."""
        if self._coordinator is not None:
            self._coordinator.receive(self._host, message)
        elif self._client is not None and self._client.connected:
            self._client.send(message)
        else:
            self._unsent.append(message)

    def _tell(self, host: str, message: Message) -> None:
        """The coordinator says something to a host, which may be us."""
        if host == self._host:
            self._receive(message)
        elif self._server is not None:
            self._server.send(host, message)

    def _from_host(self, host: str, message: Message) -> None:
        assert self._coordinator is not None and self._requests is not None
        self._heard[host] = time.monotonic()
        if message["op"] in (PROGRESS, STACKS):
            self._take_progress(host, message)
        elif message["op"] == "remote_ended":
            self._requests.ended(int(message["id"]), int(message["code"]), str(message.get("error") or ""))
        else:
            self._coordinator.receive(host, message)

    def _tell_progress(self, operation: str, values: dict[str, Any]) -> None:
        message = {"op": operation, **values}
        if self._coordinator is not None:
            self._take_progress(self._host, message)
        else:
            self._report(message)

    def _take_progress(self, host: str, message: Message) -> None:
        if self._progress is None:
            return
        if message["op"] == PROGRESS:
            self._progress.alive()
        else:
            self._progress.take(host, dict(message.get("places") or {}), dict(message.get("missing") or {}))

    def _no_progress(self, judge: ProgressJudge) -> None:
        assert self._coordinator is not None and self._settings.hang_timeout is not None
        lines: list[str] = []
        for host in self._env.hosts:
            places = judge.places.get(host)
            lines += [unanswered(host)] if places is None else [f"{host}, {name}: {at}" for name, at in places.items()]
        self._coordinator.fail(no_progress(self._settings.hang_timeout, lines, judge.missing, self._host))

    def _host_lost(self, host: str, reason: str) -> None:
        assert self._coordinator is not None
        if self._outcome is None or not self._coordinator.ended >= {host}:
            self._coordinator.lost(host, reason)

    def _master_lost(self, reason: str) -> None:
        if self._state is ToolkitState.OVER:
            return
        self._over(
            Outcome(
                failure=Failure(
                    cause=Cause.HOST_LOST,
                    message=f"{self._env.master} was lost: {reason}.",
                    host=self._host,
                    hints=(f"See the log of {self._env.master} for the cause.",),
                )
            )
        )

    def _check_gathered(self, now: float) -> None:
        assert self._coordinator is not None
        limit = self._settings.start_timeout
        silent = [
            host
            for host in self._coordinator.missing()
            if host != self._host and now - self._heard.get(host, self._began) > limit
        ]
        if silent and self._outcome is None:
            connected = [host for host in silent if host in self._coordinator.joined]
            self._coordinator.fail(
                Failure(
                    cause=Cause.TIMEOUT,
                    message=f"{', '.join(silent)} did not answer within {limit:g} s "
                    f"(connected: {', '.join(connected) or 'none of them'}).",
                    host=silent[0],
                )
            )

    # --- what the coordinator decides ---

    def ready(self, plan: Callable[[Membership], Plan], gang: Gang, ports: tuple[int, ...]) -> None:
        """This host's code is in place: join the barrier.

        Args:
            plan: Makes the plan once everybody's ports are known.
            gang: Starts this host's processes.
            ports: The ports that are reserved for this host.
        """
        self._planner = plan
        self._gang = gang
        gang.on_importing = lambda member: self._tell_started()
        gang.on_started = self._member_started
        gang.on_ended = self._member_ended
        gang.on_exception = self._member_raised
        gang.on_event = self._member_event
        gang.on_serving = lambda member: self._check_done()
        gang.on_remote = self._remote_requested
        gang.on_activity = self._watch.note_activity
        self._ports = ports
        self._report({"op": "ready", "ports": list(ports)})

    def fail(self, failure: Failure) -> None:
        """Report a failure of this host."""
        if self._state is ToolkitState.OVER:
            return
        if self._plan is not None:
            failure = reports.lost_ranks(failure, self._plan)
        failure = self._in_users_words(failure)
        if self._ports and failure.cause is Cause.PROCESS and reports.is_port_conflict(failure):
            failure = dataclasses.replace(failure, cause=Cause.PORT_TAKEN)
        if self._coordinator is None and self._client is None:
            self._over(Outcome(failure=failure))
            return
        self._report({"op": "failed", "failure": _bounded(failure)})
        if self._coordinator is None:
            # algo-1's verdict takes a millisecond; if it does not come, we end all the same.
            self._loop.call_later(FAREWELL, lambda: self._over(Outcome(failure=failure)))

    def _in_users_words(self, failure: Failure) -> Failure:
        """What the script itself wrote to ``output/failure`` is the reason, as on SageMaker."""
        if failure.cause is not Cause.PROCESS:
            return failure
        try:
            words = self._env.tree.failure_file.read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return failure
        return dataclasses.replace(failure, message=cut(words, REASON_LIMIT)) if words else failure

    def stop(self) -> None:
        """SIGTERM to the toolkit: the whole cluster stops, with time to save. A second one ends it at once."""
        if self._asked_to_stop:
            self.end_now()
            return
        self._asked_to_stop = True
        if self._gang is None:
            self._over(Outcome(stopped=True))
        elif self._state is not ToolkitState.OVER:
            self._report({"op": "stop"})
            if self._coordinator is None:
                self._begin_stop()

    def end_now(self) -> None:
        """End without any grace."""
        self._over(Outcome(stopped=True), grace=0.0)

    def _instructed(self, message: Message) -> None:
        if message["op"] == "kill":
            self._kill_rank(int(message["rank"]), int(message["signal"]))
        else:
            super()._instructed(message)

    def _kill_rank(self, rank: int, number: int) -> None:
        """Send a signal to a rank of this host: a fault that the user has ordered."""
        for member in self._gang.ranks if self._gang is not None else ():
            if member.rank == rank and member.running and member.pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(member.pid, number)

    def abandoned(self) -> None:
        """Whoever started us is gone: end everything soon."""
        self._over(
            Outcome(failure=Failure(cause=Cause.HOST_LOST, message="the job's supervisor is gone.", host=self._host))
        )

    def _receive(self, message: Message) -> None:
        self._heard[self._env.master] = time.monotonic()
        match message["op"]:
            case "go":
                self._go(message.get("ports", {}))
            case "stop":
                self._begin_stop()
            case "finish":
                stopped = self._state is ToolkitState.STOPPING
                # What still serves (parameter servers, their workers) may end by itself.
                serving = self._plan is not None and self._plan.has_servers and not stopped
                self._over(Outcome(stopped=stopped), grace=FAILURE_GRACE if serving else 0.0)
            case "end":
                self._over(Outcome(failure=Failure.from_dict(message["failure"])))
            case "dump":
                assert self._gang is not None
                self._watch.dump_stacks(self._gang)
            case "spawn":
                self._spawn_daemon(int(message["id"]), [str(word) for word in message["argv"]])

    def _go(self, ports: dict[str, list[int]]) -> None:
        assert self._planner is not None and self._gang is not None
        self._state = ToolkitState.RUNNING
        self._event("phase", name="cluster_ready")
        self._plan = self._planner(self._membership(ports))
        if self._coordinator is not None:
            self._coordinator.judge = self._judge_evidence
        mine = self._plan.host(self._host)
        try:
            if RANK_PROGRAM in (self._plan.mpirun or ()):
                daemons.make_rank_program(self._settings.runtime_dir, self._env.machine)
            # First expect, then launch: mpirun's ranks may be quicker than the loop.
            for process in mine.processes:
                if process.started_by is StartedBy.MPIRUN:
                    self._gang.expect(process)
                    self._gang.leave_command(process.argv)
            for process in mine.processes:
                if process.role is Role.LAUNCHER:
                    path = self._gang.environment.get("PATH", "")
                    argv = daemons.prepare(process.argv, path, self._settings.runtime_dir, self._env.machine)
                    session = daemons.session_environment(self._settings.runtime_dir, path)
                    mpirun = self._gang.launch_bare(
                        process.name, process.role, argv, {**process.environment, **session}
                    )
                    if mpirun.pid is not None and len(self._env.hosts) > 1:
                        daemons.limit_open_files(mpirun.pid)
                elif process.started_by is StartedBy.TOOLKIT:
                    self._gang.launch(process)
        except OSError as error:
            self.fail(
                Failure(
                    cause=Cause.LAUNCH,
                    message=f"{error.filename or 'the command'} could not be started: {error.strerror}.",
                    host=self._host,
                )
            )
            return
        self._loop.call_later(self._settings.start_timeout, self._check_started)
        self._watch.start(lambda: self._state is ToolkitState.RUNNING)
        if self._progress is not None:
            self._progress.start()

    def _membership(self, ports: dict[str, list[int]]) -> Membership:
        """Who is in the cluster and where: on one machine at loopback, and at the ports that each host has reserved."""
        members = membership_of(self._env)
        if not self._env.reserves_ports:
            return members
        hosts = (
            dataclasses.replace(
                host,
                address="127.0.0.1" if self._env.machine.shared else host.address,
                ports=tuple(ports.get(host.name, ())),
            )
            for host in members.hosts
        )
        return dataclasses.replace(members, hosts=tuple(hosts))

    def _check_started(self) -> None:
        assert self._gang is not None
        missing = [
            member.name
            for member in self._gang.ranks
            if member.pid is None and not member.ended and not member.waits_for_importer
        ]
        if not missing and self._state is ToolkitState.RUNNING:
            self._check_importer(self._gang)
        if missing and self._state is ToolkitState.RUNNING:
            self.fail(
                Failure(
                    cause=Cause.TIMEOUT,
                    message=f"{', '.join(missing)} did not start within {self._settings.start_timeout:g} s.",
                    host=self._host,
                    hints=("mpirun's own output, under [mpirun], may say why.",),
                )
            )

    def _check_importer(self, gang: Gang) -> None:
        """See that what imports for ranks goes on doing so: imports may take any time, but not in silence."""
        waiting = [member.name for member in gang.ranks if member.waits_for_importer]
        left = gang.importer_heard + self._settings.start_timeout - time.monotonic()
        if waiting and left > 0:
            self._loop.call_later(left, self._check_started)
        elif waiting:
            stopped = gang.importer is not None and processes.is_stopped(gang.importer)
            self.fail(
                Failure(
                    cause=Cause.TIMEOUT,
                    message=f"the process that imports modules for {', '.join(waiting)} has imported nothing for "
                    f"{self._settings.start_timeout:g} s{': it is stopped (SIGSTOP)' if stopped else ''}.",
                    host=self._host,
                )
            )

    def _begin_stop(self) -> None:
        if self._state in (ToolkitState.STOPPING, ToolkitState.OVER):
            return
        if self._gang is None:  # still preparing: there is nobody to save anything
            self._over(Outcome(stopped=True))
            return
        self._state = ToolkitState.STOPPING
        self._event("phase", name="stopping")
        for member in self._gang.ranks:
            member.told = True
        self._gang.signal_all(signal.SIGTERM, (Role.RANK,))
        self._loop.call_later(self._settings.stop_grace, self._grace_over)
        self._check_stopped()

    def _grace_over(self) -> None:
        if self._state is ToolkitState.STOPPING:
            self._output.say(self._host, f"the ranks did not end within {self._settings.stop_grace:g} s of SIGTERM.")
            self._over(Outcome(stopped=True), grace=0.0)

    def _check_stopped(self) -> None:
        assert self._gang is not None
        if self._state is ToolkitState.STOPPING and all(
            member.ended or member.pid is None for member in self._gang.ranks
        ):
            self._report({"op": "stopped"})

    # --- processes ---

    def _member_started(self, member: Member) -> None:
        assert self._gang is not None
        self._event("process_started", rank=member.rank, name=member.name, pid=member.pid)
        if self._state is ToolkitState.STOPPING:
            self._gang.signal_all(signal.SIGTERM, (Role.RANK,))
        self._tell_started()

    def _tell_started(self) -> None:
        """Say when all ranks have been started, be it that they have to be imported for yet."""
        assert self._gang is not None
        if not self._told_started and all(rank.pid is not None or rank.waits_for_importer for rank in self._gang.ranks):
            self._told_started = True
            self._event("phase", name="ranks_started")

    def _member_raised(self, member: Member) -> None:
        """A rank's Python reported an uncaught exception: it has a moment to end by itself."""
        if self._raised(member) and not member.ended:
            consequence = reports.is_consequence(member)
            if not consequence:
                self._report({"op": "raised", "process": member.name})
            self._exception_timers[member.name] = self._loop.call_later(
                CONSEQUENCE_GRACE if consequence else EXCEPTION_GRACE, lambda: self._still_ending(member)
            )

    @staticmethod
    def _raised(member: Member) -> bool:
        """Return whether it, and not a process that it has started, reported an uncaught exception."""
        return member.exception is not None and member.exception.get("pid") == member.pid

    def _still_ending(self, member: Member) -> None:
        if not member.ended and self._state is ToolkitState.RUNNING:
            self.fail(reports.of_member(member, self._host, Situation.of(self._env)))

    def _member_event(self, member: Member, values: dict[str, Any]) -> None:
        if values.get("kind") == "evidence":
            if member.role is Role.RANK and isinstance(values.get("data"), dict):
                self._report({"op": "evidence", "process": member.name, "data": values["data"]})
            return
        self._pass_on(values, rank=member.rank)
        if self._settings.on_nan == "fail" and values.get("kind") == "metric" and isinstance(values.get("data"), dict):
            self._check_metric(member, values["data"])

    def _check_metric(self, member: Member, data: dict[str, Any]) -> None:
        name = str(data.get("name"))
        value: Any = data.get("value")
        if self._state is ToolkitState.RUNNING and diverging.has_diverged(name, value):
            text = diverging.describe(name, value, rank=member.rank, process=member.name, place=data)
            self.fail(diverging.failure(text, self._host, member.rank))

    def _judge_evidence(self) -> Failure | None:
        """On algo-1, when all is done: whether the ranks had anything to do with each other."""
        assert self._plan is not None and self._coordinator is not None
        if self._env.strategy is None or not evidence.is_cluster(self._plan):
            return None
        known = self._coordinator.evidence
        text = evidence.verdict(
            self._plan.strategy,
            [known.get((process.host, process.name)) or evidence.RankEvidence() for process in self._plan.ranks],
        )
        if text is None:
            return None
        if self._settings.on_undistributed == "fail":
            return evidence.failure(text, self._host)
        self._event("warning", message=text)
        return None

    def _member_ended(self, member: Member) -> None:
        assert self._gang is not None
        timer = self._exception_timers.pop(member.name, None)
        if timer is not None:
            timer.cancel()
        if self._raised(member) and not member.failed:
            self._report({"op": "survived", "process": member.name})
        if member.role is Role.RANK:
            self._event(
                "process_ended",
                rank=member.rank,
                name=member.name,
                exit_code=member.exit_code,
                signal=member.signal,
                max_rss_kb=member.max_rss_kb,
            )
            if self._env.strategy is not None:
                self._report({"op": "evidence", "process": member.name, "data": {"ended": True}})
            if all(rank.ended for rank in self._gang.ranks):
                self._event("phase", name="ranks_ended")
            if member.rank == 0 and self._plan is not None and self._plan.has_servers:
                self._loop.call_later(_REMARK_AFTER, self._say_who_runs)
        if self._state is ToolkitState.STOPPING:
            self._check_stopped()
        elif self._state is ToolkitState.RUNNING:
            self._judge(member)

    def _judge(self, member: Member) -> None:
        """A process ended while the job runs: a failure, a step to the end, or neither."""
        assert self._gang is not None
        if member in self._daemons:
            if member.signal is not None:
                self.fail(self._launcher_failure(member))
            elif member.failed:
                self._loop.call_later(_DAEMON_GRACE, lambda: self._late_failure(member))
        elif member.role is Role.LAUNCHER:
            if member.signal is not None:
                self.fail(self._launcher_failure(member))
            elif member.failed:
                # Why a daemon ended its own host knows, which waits whether mpirun's end was the reason.
                grace = 2 * _DAEMON_GRACE if reports.has_lost_daemon(member) else _LAUNCHER_GRACE
                self._loop.call_later(grace, lambda: self._late_failure(member))
            else:
                self._check_done()
        elif member.failed and worker_restart.allows(
            member, self._plan, self._env.strategy, self._settings.worker_restarts
        ):
            self._revive(member)
        elif member.failed:
            if member.told and self._launched_by_mpi(member) and not self._raised(member):
                # mpirun is ending its ranks. Why, it or the rank that failed first says; if nobody does, it was this.
                self._loop.call_later(FAREWELL, lambda: self._late_failure(member))
            elif member.vanished and self._launched_by_mpi(member):
                # mpirun's end takes its daemons with it, and theirs the wrappers: it has its grace too.
                self._loop.call_later(2 * _LAUNCHER_GRACE, lambda: self._late_failure(member))
            elif reports.is_consequence(member):
                self._loop.call_later(CONSEQUENCE_GRACE, lambda: self._late_failure(member))
            else:
                self.fail(reports.of_member(member, self._host, Situation.of(self._env)))
        else:
            self._check_done()

    def _revive(self, member: Member) -> None:
        """A worker of parameter servers was killed: the chief goes on with the others until it is there again."""
        assert self._gang is not None and self._plan is not None
        count = member.revivals + 1
        how = describe_end(member.exit_code, member.signal)
        self._event("worker_restarted", rank=member.rank, name=member.name, how=how, count=count)
        self._output.say(self._host, f"{member.name} {how}. fleetfit restarts it, and the chief continues")
        plan = next(process for process in self._plan.host(self._host).processes if process.name == member.name)
        self._gang.launch(plan).revivals = count

    def _launched_by_mpi(self, member: Member) -> bool:
        assert self._plan is not None
        return any(
            process.name == member.name and process.started_by is StartedBy.MPIRUN
            for process in self._plan.host(self._host).processes
        )

    def _late_failure(self, member: Member) -> None:
        if self._state is ToolkitState.RUNNING:
            if member.vanished and (daemon := self._daemons.first_ended) is not None:
                if daemon.failed:
                    self.fail(self._launcher_failure(daemon))
                else:  # mpirun told it to end
                    self._fail_unless_mpirun_ends(self._launcher_failure(daemon))
            elif member.role is Role.LAUNCHER:
                self.fail(self._launcher_failure(member))
            else:
                self.fail(reports.of_member(member, self._host, Situation.of(self._env)))

    def _launcher_failure(self, member: Member) -> Failure:
        waiting = [rank.name for rank in self._gang.ranks if rank.pid is None] if self._gang is not None else []
        return reports.of_launcher(member, self._host, waiting)

    def _check_done(self) -> None:
        assert self._gang is not None and self._plan is not None
        members = self._gang.members.values()
        complete = all(
            member.ended or (member.serving and self._plan.has_servers and member.rank != 0)
            for member in self._gang.ranks
        )
        launcher = [member for member in members if member.role is Role.LAUNCHER and member not in self._daemons]
        if complete and all(member.ended for member in launcher) and not self._done_sent:
            self._done_sent = True
            self._report({"op": "done"})

    def _say_who_runs(self) -> None:
        """Rank 0's script ended a while ago: why the job goes on."""
        left = self._coordinator.running() if self._coordinator is not None else [self._host]
        if self._state is ToolkitState.RUNNING and left:
            self._output.say(
                self._host,
                f"rank 0 has ended, but the job goes on until the scripts of {', '.join(left)} have ended too. If a "
                "script only serves, let it wait in distributed.init() or server.join(): fleetfit then ends it.",
            )

    def _remote_requested(self, connection: Connection, host: str, argv: list[str]) -> None:
        """mpirun, which runs on algo-1 only, wants its daemon on a host."""
        if self._requests is not None:
            self._requests.take(connection, host, argv, self._server)
        else:
            connection.close()

    def _spawn_daemon(self, number: int, words: list[str]) -> None:
        assert self._gang is not None
        self._daemons.spawn(number, words, self._gang)

    def _remote_shell_gone(self, failure: Failure) -> None:
        self._loop.call_later(_LAUNCHER_GRACE, lambda: self._judge_remote_shell(failure))

    def _judge_remote_shell(self, failure: Failure) -> None:
        assert self._requests is not None
        if self._requests.waiting:
            self._fail_if_running(failure)  # it was killed alone
        else:  # mpirun kills the shells that are left when it ends
            self._fail_unless_mpirun_ends(failure)

    def _fail_unless_mpirun_ends(self, failure: Failure) -> None:
        """Report what looks like the work of an mpirun that is ending, unless its own end says more in time.

        On a busy machine it may be a second until mpirun has gone, after all that it has ended.
        """
        self._loop.call_later(FAREWELL, lambda: self._fail_if_running(failure))

    def _fail_if_running(self, failure: Failure) -> None:
        if self._state is ToolkitState.RUNNING and not self._done_sent:
            self.fail(failure)

    # --- the end ---

    def _over(self, outcome: Outcome, grace: float = FAILURE_GRACE) -> None:
        """The verdict is known: end what runs, then leave the loop."""
        if self._state is ToolkitState.OVER:
            if grace == 0.0:
                self._finish()
            return
        self._state = ToolkitState.OVER
        self._end_as(outcome, grace)

    def _farewell(self) -> None:
        """The other hosts say that they have ended; algo-1 waits for that a while."""
        if self._client is not None:
            self._client.send({"op": "ended"})
            self._client.close()
        if self._server is not None and self._coordinator is not None:
            until = time.monotonic() + FAREWELL
            while self._server.hosts and not self._coordinator.everybody_ended and time.monotonic() < until:
                self._loop.run_once(until - time.monotonic())
            self._server.close()


def _bounded(failure: Failure) -> dict[str, Any]:
    """Return the failure as a message that fits a control frame."""
    limit = 64 << 10
    texts = ("traceback", "log_tail", "places")
    trimmed = {name: value[-limit:] for name in texts if (value := getattr(failure, name)) is not None}
    return dataclasses.replace(failure, **trimmed, message=failure.message[:limit]).to_dict()
