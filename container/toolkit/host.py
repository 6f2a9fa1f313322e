"""Run a job's processes on one host, from the end of the host's preparation to the end of the last process.

:class:`container.toolkit.machine.HostMachine` decides what follows from events on this host.
:class:`container.toolkit.coordinator.Coordinator`, on algo-1, decides for all hosts. :class:`HostRuntime` owns the
processes, the connections and the clock. It passes events to both of these classes, and performs the actions that they
return.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from container.contract import diverging
from container.contract.environment import Environment
from container.contract.failures import REASON_LIMIT, Cause, Failure, no_progress, unanswered
from container.contract.membership import Membership
from container.contract.messages import Message
from container.contract.names import cut
from container.contract.plan import Plan, ProcessPlan, Role, StartedBy
from container.contract.wire import PROGRESS
from container.launchers import membership_of
from container.launchers.mpi import RANK_PROGRAM
from container.system import processes
from container.system.connection import Connection
from container.system.loop import SelectorLoop, Timer
from container.system.progress import ProgressJudge
from container.toolkit import control, evidence, machine, reports
from container.toolkit.coordinator import Coordinator
from container.toolkit.machine import Action, Event, HostMachine, PlainAction, PlainEvent
from container.toolkit.mpi import daemons, remotes
from container.toolkit.output import Output
from container.toolkit.process_group import ClusterProcess, Gang
from container.toolkit.runtime import HostSettings, Runtime

if TYPE_CHECKING:
    from container.toolkit.train import Preparation


#: How often hosts that wait for each other send a sign of life, in seconds.
_BEAT = 2.0


class HostRuntime(Runtime):
    """Run a job's processes on one host. The hosts of the job do not change.

    Args:
        loop: The event loop.
        output: The object that writes lines and events for the supervisor.
        environment: The job as this host sees it.
        settings: The backend's settings.
    """

    def __init__(self, loop: SelectorLoop, output: Output, environment: Environment, settings: HostSettings) -> None:
        super().__init__(loop, output, environment, settings)
        self._remote_shells = remotes.RemoteShells()
        self._machine = HostMachine(environment, settings, self._remote_shells.waiting)
        self._events: collections.deque[Event] = collections.deque()
        self._timer: Timer | None = None
        self._due: float | None = None
        self._plan: Plan | None = None
        self._preparation: Preparation | None = None
        self._daemons: dict[str, int] = {}  # mpirun's daemons on this host -> the numbers of their requests
        self._server: control.ControlServer | None = None
        self._client: control.ControlClient | None = None
        self._coordinator: Coordinator | None = None
        self._progress: ProgressJudge | None = None
        if environment.is_master:
            self._coordinator = Coordinator(environment.hosts, settings.start_timeout, time.monotonic())
        if environment.is_master and settings.hang_timeout:
            self._progress = _Progress(self, settings.hang_timeout)

    # --- decisions and their execution ---

    def _handle(self, event: Event) -> None:
        """Handle an event, and perform the resulting actions. If another event is being handled, this event is handled
        afterwards.
        """
        self._events.append(event)
        if len(self._events) > 1:
            return
        try:
            while self._events:
                for action in self._machine.handle(self._events[0], time.monotonic()):
                    self._perform(action)
                self._events.popleft()
        except BaseException:
            self._events.clear()  # otherwise the failure that follows would wait for this event forever
            raise
        if self._machine.next_deadline != self._due:
            self._set_timer(self._machine.next_deadline)

    def _set_timer(self, due: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due = due
        self._timer = self._loop.call_later(due - time.monotonic(), self._time_up) if due is not None else None

    def _time_up(self) -> None:
        self._timer = self._due = None
        self._handle(PlainEvent.TIME_UP)

    def _perform(self, action: Action) -> None:
        match action:
            case machine.TellSupervisor(kind, data, rank):
                self.tell(kind, rank, **data)
            case machine.Say(text):
                self._output.say(self._host, text)
            case machine.TellMaster(message):
                self._report(message)
            case machine.Fail(failure):
                failure = self._in_users_words(failure)
                self._report({"op": "failed", "failure": _bounded(failure)})
                self._handle(machine.Reported(failure))
            case machine.Revive(process, count):
                assert self._gang is not None
                self._gang.launch(process).revivals = count
            case machine.BlameImporter(ranks):
                self._blame_importer(ranks)
            case machine.Over(outcome, grace):
                self._end_as(outcome, grace)
            case PlainAction.LAUNCH:
                self._launch()
            case PlainAction.STOP_RANKS:
                assert self._gang is not None
                self._gang.stop_ranks()
            case PlainAction.SAY_WHO_RUNS:
                self._say_who_runs()

    def _in_users_words(self, failure: Failure) -> Failure:
        """Return a failure with the message that the script has written to ``output/failure``, as on SageMaker.

        Return the failure unchanged if the script has written nothing, or if no process has failed.
        """
        if failure.cause not in (Cause.PROCESS, Cause.PORT_TAKEN):
            return failure
        try:
            words = self._env.tree.failure_file.read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return failure
        return dataclasses.replace(failure, message=cut(words, REASON_LIMIT)) if words else failure

    def _blame_importer(self, ranks: tuple[str, ...]) -> None:
        assert self._gang is not None
        stopped = self._gang.importer is not None and processes.is_stopped(self._gang.importer)
        message = (
            f"the process that imports modules for {', '.join(ranks)} has imported nothing for "
            f"{self._settings.start_timeout:g} s{': it is stopped (SIGSTOP)' if stopped else ''}."
        )
        self.fail(Failure(cause=Cause.TIMEOUT, message=message, host=self._host))

    def _say_who_runs(self) -> None:
        """Print that rank 0's script has ended, and which hosts the job still waits for. If it waits for none, print
        nothing.
        """
        left = self._coordinator.running() if self._coordinator is not None else [self._host]
        if left:
            self._output.say(
                self._host,
                f"rank 0 has ended, but the job goes on until the scripts of {', '.join(left)} have ended too. If a "
                "script only serves, let it wait in distributed.init() or server.join(): fleetfit then ends it.",
            )

    # --- calls of the main program and messages of the supervisor ---

    def ready(self, preparation: Preparation, gang: Gang, ports: tuple[int, ...]) -> None:
        """Report that the preparation of this host is done, and wait for the other hosts. See :meth:`Runtime.ready`."""
        self._preparation, self._gang = preparation, gang
        self._handle(machine.Prepared(gang.members, ports))

    def fail(self, failure: Failure) -> None:
        """Report a failure of this host to algo-1, which then ends the job on all hosts."""
        self._handle(machine.HostFailed(failure))

    def stop(self) -> None:
        """Stop the job on all hosts: send SIGTERM to the ranks, whose scripts get time to save. A second call ends this
        host's processes at once.
        """
        self._handle(PlainEvent.STOP_ASKED)

    def end_now(self) -> None:
        """Stop this host's processes without a grace period."""
        self._handle(PlainEvent.END_ASKED)

    def abandoned(self) -> None:
        """Stop this host's processes with a failure, because the supervisor has ended."""
        message = "the job's supervisor is gone."
        self._handle(machine.JobFailed(Failure(cause=Cause.HOST_LOST, message=message, host=self._host)))

    def _instructed(self, message: Message) -> None:
        if message["op"] == "kill":
            self._kill_rank(int(message["rank"]), int(message["signal"]))
        else:
            super()._instructed(message)

    def _kill_rank(self, rank: int, number: int) -> None:
        """Send a signal to a rank of this host. The supervisor requests this to inject a fault."""
        for member in self._gang.ranks if self._gang is not None else ():
            if member.rank == rank and member.running and member.pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(member.pid, number)

    # --- the connection between the hosts ---

    def connect(self) -> None:
        """Listen on algo-1, or connect to algo-1 from another host. If the job has a single host, do neither."""
        fd, address = self._settings.control_fd, self._settings.control_address
        if len(self._env.hosts) == 1:
            if fd is not None:
                os.close(fd)
            return
        if self._env.is_master:
            if fd is not None:
                listener = control.inherited_listener(fd)
            else:
                listener = control.listen("", address[1] if address is not None else 0)
            others = set(self._env.hosts[1:])
            self._server = control.ControlServer(
                self._loop, listener, self, token=self._settings.token, expected=others
            )
        else:
            assert address is not None
            self._client = control.ControlClient(
                self._loop,
                address,
                self,
                hello=self._host,
                token=self._settings.token,
                deadline=time.monotonic() + self._settings.start_timeout,
            )
        self._beat()

    def _beat(self) -> None:
        """Send a sign of life at intervals, until all hosts are ready. On algo-1, also fail the job if a host is silent
        for too long.

        The preparation may take long, for example while requirements are installed. Therefore only the time without
        messages is limited.
        """
        if self._machine.state is not machine.HostStage.STARTING:
            return
        if self._coordinator is not None and self._server is not None:
            self._server.broadcast({"op": "gathering"})
            self._tell_all(self._coordinator.check_gathered(time.monotonic()))
        elif self._client is not None and self._client.connected:
            self._client.send({"op": "preparing"})
        self._loop.call_later(min(_BEAT, self._settings.start_timeout / 4), self._beat)

    def _report(self, message: Message) -> None:
        """Send a message to algo-1. If this host is algo-1, handle the message directly."""
        if self._client is not None:
            self._client.send(message)
        else:
            self.host_said(self._host, message)

    def _tell(self, host: str, message: Message) -> None:
        """Send a message to a host. If ``host`` is this host, handle the message directly."""
        if host == self._host:
            self.master_said(message)
        elif self._server is not None:
            self._server.send(host, message)

    def _tell_all(self, message: Message | None) -> None:
        if message is not None:
            for host in self._env.hosts:
                self._tell(host, message)

    # --- on algo-1: messages of hosts ---

    def host_joined(self, host: str) -> None:
        assert self._coordinator is not None
        self._coordinator.joined.add(host)

    def host_said(self, host: str, message: Message) -> None:
        assert self._coordinator is not None
        match message["op"]:
            case "progress" | "stacks":
                self._take_progress(host, message)
            case "remote_ended":
                self._remote_shells.end(int(message["id"]), int(message["code"]), str(message.get("error") or ""))
            case _:
                self._tell_all(self._coordinator.receive(host, message, time.monotonic()))
                if self._coordinator.all_done:
                    self._tell_all(self._judge_evidence(self._coordinator))

    def host_lost(self, host: str, reason: str) -> None:
        assert self._coordinator is not None
        if self._outcome is not None and host in self._coordinator.ended:
            return  # the host has reported its end before: the lost connection is no failure
        self._tell_all(self._coordinator.lost(host, reason, time.monotonic()))

    def _judge_evidence(self, coordinator: Coordinator) -> Message | None:
        """Return the message to all hosts that ends the job after all hosts are done.

        The job fails if its ranks did not communicate with each other, and the user has chosen
        ``on_undistributed="fail"``.
        """
        assert self._plan is not None
        text = evidence.judge(self._plan, coordinator.evidence) if self._env.strategy is not None else None
        if text is not None and self._settings.on_undistributed == "fail":
            return coordinator.fail(evidence.failure(text, self._host))
        if text is not None:
            self.tell("warning", message=text)
        return coordinator.finish()

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
        self._tell_all(
            self._coordinator.fail(no_progress(self._settings.hang_timeout, lines, judge.missing, self._host))
        )

    # --- messages of algo-1 ---

    def master_joined(self) -> None:
        self._handle(PlainEvent.MASTER_HEARD)

    def master_lost(self, reason: str) -> None:
        self._handle(machine.MasterLost(reason))

    def master_said(self, message: Message) -> None:
        """Handle a message of algo-1's coordinator. See :class:`container.toolkit.control.MasterListener`.

        On algo-1 itself, :meth:`_tell` calls this method directly, without a connection.
        """
        match message["op"]:
            case "gathering":
                self._handle(PlainEvent.MASTER_HEARD)
            case "go":
                assert self._preparation is not None
                self._plan = self._preparation.plan(self._membership(message.get("ports", {})))
                self._handle(machine.Go(self._plan))
            case "stop":
                self._handle(PlainEvent.STOP)
            case "finish":
                self._handle(PlainEvent.FINISH)
            case "end":
                self._handle(machine.JobFailed(Failure.from_dict(message["failure"])))
            case "dump":
                assert self._gang is not None
                self._watch.dump_stacks(self._gang)
            case "spawn":
                self._start_daemon(int(message["id"]), [str(word) for word in message["argv"]])

    def _membership(self, ports: dict[str, list[int]]) -> Membership:
        """Return the hosts with their addresses, and with the ports that each host has reserved.

        If the hosts share a machine, the address of each host is the loopback address.
        """
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

    # --- processes ---

    def _launch(self) -> None:
        assert self._plan is not None and self._gang is not None
        mine = self._plan.host(self._host)
        try:
            if RANK_PROGRAM in (self._plan.mpirun or ()):
                daemons.make_rank_program(self._settings.runtime_dir, self._env.machine)
            # Expect ranks before launching: mpirun's ranks may connect before the loop continues.
            for process in mine.processes:
                if process.started_by is StartedBy.MPIRUN:
                    self._gang.expect(process)
                    self._gang.leave_command(process.argv)
            for process in mine.processes:
                if process.role is Role.LAUNCHER:
                    self._launch_mpirun(process, self._gang)
                elif process.started_by is StartedBy.TOOLKIT:
                    self._gang.launch(process)
        except OSError as error:
            self.fail(reports.not_started(error, self._host))
            return
        self._watch.start()
        if self._progress is not None:
            self._progress.start()

    def _launch_mpirun(self, process: ProcessPlan, gang: Gang) -> None:
        path = gang.environment.get("PATH", "")
        argv = daemons.prepare(process.argv, path, self._settings.runtime_dir, self._env.machine)
        session = daemons.session_environment(self._settings.runtime_dir, path)
        mpirun = gang.launch_bare(process.name, process.role, argv, {**process.environment, **session})
        if mpirun.pid is not None and len(self._env.hosts) > 1:
            daemons.limit_open_files(mpirun.pid)

    def on_importing(self, member: ClusterProcess) -> None:
        self._handle(PlainEvent.IMPORTING)

    def on_importer(self, message: Message) -> None:
        super().on_importer(message)
        self._handle(PlainEvent.IMPORTER_HEARD)

    def on_started(self, member: ClusterProcess) -> None:
        self._handle(machine.ProcessStarted(member))

    def on_exception(self, member: ClusterProcess) -> None:
        self._handle(machine.Raised(member))

    def on_serving(self, member: ClusterProcess) -> None:
        self._handle(PlainEvent.SERVING)

    def on_ended(self, member: ClusterProcess) -> None:
        if (number := self._daemons.pop(member.name, None)) is not None:
            self._answer_shell(number, member.exit_code if member.exit_code is not None else 255, "")
        self._handle(machine.ProcessEnded(member))

    def on_event(self, member: ClusterProcess, values: dict[str, Any]) -> None:
        kind, data = values.get("kind"), values.get("data")
        if kind != "evidence":
            self._pass_on(values, rank=member.rank)
        elif member.role is Role.RANK and isinstance(data, dict):
            self._report({"op": "evidence", "process": member.name, "data": data})
        if kind == "metric" and self._settings.on_nan == "fail" and isinstance(data, dict):
            self._check_metric(member, data)

    def _check_metric(self, member: ClusterProcess, data: dict[str, Any]) -> None:
        name = str(data.get("name"))
        value: Any = data.get("value")
        if diverging.has_diverged(name, value):
            text = diverging.describe(name, value, rank=member.rank, process=member.name, place=data)
            self._handle(machine.RankDiverged(diverging.failure(text, self._host, member.rank)))

    # --- mpirun's daemons ---

    def on_remote_shell(self, connection: Connection, host: str, argv: list[str]) -> None:
        """Handle the request of mpirun's remote shell: ask the toolkit of ``host`` to start mpirun's daemon.

        On any host other than algo-1, close the connection: mpirun and its remote shell run only on algo-1.
        """
        if not self._env.is_master:
            connection.close()
            return
        number = self._remote_shells.add(connection)
        connection.closed = lambda reason: self._remote_shell_gone(number, host)
        if host not in self._env.hosts:
            self._remote_shells.end(number, 255, f"{host} is not a host of this job")
        elif host != self._host and (self._server is None or host not in self._server.hosts):
            self._remote_shells.end(number, 255, f"{host} is not connected")
        else:
            self._tell(host, {"op": "spawn", "id": number, "argv": argv})

    def _remote_shell_gone(self, number: int, host: str) -> None:
        failure = self._remote_shells.gone(number, host, self._host)
        if failure is not None:
            self._handle(machine.ShellGone(failure))

    def _start_daemon(self, number: int, words: list[str]) -> None:
        assert self._gang is not None
        try:
            folder, this_machine = self._settings.runtime_dir, self._env.machine
            daemon = remotes.start_daemon(words, self._gang, self._host, folder, this_machine)
        except (OSError, ValueError) as error:  # mpirun's own error would blame firewalls
            message = f"mpirun's daemon could not be started: {error}"
            self._handle(machine.Suspected(Failure(cause=Cause.LAUNCH, message=message, host=self._host)))
            self._answer_shell(number, 255, f"{self._host}: {error}")
            return
        self._daemons[daemon.name] = number

    def _answer_shell(self, number: int, code: int, error: str) -> None:
        self._report({"op": "remote_ended", "id": number, "code": code, "error": error})

    # --- progress and the end ---

    @property
    def is_watched(self) -> bool:
        return self._machine.runs

    def tell_progress(self, kind: str, values: dict[str, Any]) -> None:
        self._report({"op": kind, **values})

    def _farewell(self) -> None:
        """Report to algo-1 that this host has ended.

        On algo-1, wait some seconds for the reports of the other hosts.
        """
        if self._client is not None:
            self._client.send({"op": "ended"})
            self._client.close()
        if self._server is not None and self._coordinator is not None:
            until = time.monotonic() + machine.FAREWELL
            while self._server.hosts and not self._coordinator.everybody_ended and time.monotonic() < until:
                self._loop.run_once(until - time.monotonic())
            self._server.close()


class _Progress(ProgressJudge):
    """Decide whether the ranks of the job make progress. The toolkit of algo-1 uses this class."""

    def __init__(self, runtime: HostRuntime, limit: float) -> None:
        super().__init__(runtime._loop, limit)
        self._runtime = runtime

    def is_expected(self) -> bool:
        """Return whether the ranks are running. Only then is progress expected."""
        return self._runtime._machine.runs

    def hosts(self) -> Sequence[str]:
        """Return the names of all hosts of the job."""
        return self._runtime._env.hosts

    def ask(self, host: str) -> None:
        """Request the stacks of a host's ranks."""
        self._runtime._tell(host, {"op": "dump"})

    def give_up(self) -> None:
        """Fail the job with a message that describes where each rank is."""
        self._runtime._no_progress(self)


def _bounded(failure: Failure) -> dict[str, Any]:
    """Return a failure as a dict. The texts of the failure are cut, so that the dict fits into a control message."""
    limit = 64 << 10
    texts = ("traceback", "log_tail", "places")
    trimmed = {name: value[-limit:] for name in texts if (value := getattr(failure, name)) is not None}
    return dataclasses.replace(failure, **trimmed, message=failure.message[:limit]).to_dict()
