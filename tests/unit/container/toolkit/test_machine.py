"""What a host's share of a job does next: events go in, actions come out, and the time is the test's."""

from __future__ import annotations

import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from container.contract.environment import Environment, Machine
from container.contract.failures import Cause, Failure
from container.contract.membership import Membership
from container.contract.plan import HostPlan, Plan, ProcessPlan, Role, StartedBy
from container.toolkit import machine
from container.toolkit.machine import Action, Event, HostMachine, HostStage, PlainAction, PlainEvent
from container.toolkit.process_group import ClusterProcess
from container.toolkit.runtime import FAILURE_GRACE, HostSettings, Outcome

LOST_DAEMON = "mpirun lost its daemon on algo-2.\n"


class Share:
    """algo-1's share of a job of two hosts, or algo-2's, its processes as values, and a clock."""

    def __init__(
        self,
        folder: Path,
        *names: str,
        host: str = "algo-1",
        by: StartedBy = StartedBy.TOOLKIT,
        has_servers: bool = False,
        ports: tuple[int, ...] = (),
        restarts: int = 0,
        stop_grace: float = 5.0,
        **hyperparameters: Any,
    ) -> None:
        hosts = ("algo-1", "algo-2")
        environment = Environment.from_config(
            base_dir=folder,
            machine=Machine(python="python", cpus=1),
            hyperparameters=hyperparameters,
            resource_config={"hosts": list(hosts), "current_host": host},
            input_data_config={},
        )
        settings = HostSettings(
            token=None,
            control_fd=None,
            control_address=None,
            start_timeout=10.0,
            stop_grace=stop_grace,
            runtime_dir=folder,
            worker_restarts=restarts,
        )
        roles = {"mpirun": Role.LAUNCHER, "orted": Role.LAUNCHER, "ps": Role.SERVER}
        ranks = {"rank 0": 0, "rank 1": 1, "worker": 1}
        self.members = {name: ClusterProcess(name, roles.get(name, Role.RANK), ranks.get(name)) for name in names}
        plans = tuple(
            ProcessPlan(name=one.name, host=host, role=one.role, argv=("train",), rank=one.rank, started_by=by)
            for one in self.members.values()
        )
        self.plan = Plan(
            strategy="mpi",
            membership=Membership.of(hosts),
            hosts=tuple(HostPlan(name=name, environment={}, processes=plans if name == host else ()) for name in hosts),
            has_servers=has_servers,
        )
        self.ports = ports
        self.shells: dict[int, object] = {}
        self.machine = HostMachine(environment, settings, self.shells)
        self.now = 0.0

    def handle(self, event: Event) -> list[Action]:
        """Let something happen, and return what follows."""
        return self.machine.handle(event, self.now)

    def advance(self, seconds: float) -> list[Action]:
        """Let so many seconds pass, and return what followed in them."""
        actions, until = [], self.now + seconds
        while (due := self.machine.next_deadline) is not None and due <= until:
            self.now = max(due, self.now)
            actions += self.handle(PlainEvent.TIME_UP)
        self.now = until
        return actions

    def start(self) -> Share:
        """Let all processes run."""
        self.handle(machine.Prepared(self.members, self.ports))
        self.handle(machine.Go(self.plan))
        for number, member in enumerate(self.members.values()):
            member.pid = 100 + number
            self.handle(machine.ProcessStarted(member))
        return self

    def end(self, name: str, code: int | None = 0, printed: str = "", **how: Any) -> list[Action]:
        """End a process."""
        member = self.members[name]
        member.ended, member.exit_code = True, code
        member.stream = SimpleNamespace(tail=printed.encode())  # type: ignore[assignment]
        for attribute, value in how.items():
            setattr(member, attribute, value)
        return self.handle(machine.ProcessEnded(member))

    def raises(self, name: str, message: str = "no data") -> list[Action]:
        """Let a rank report an uncaught exception."""
        member = self.members[name]
        traceback = f'Traceback (most recent call last):\n  File "train.py", line 1\nValueError: {message}\n'
        member.exception = {"pid": member.pid, "type": "ValueError", "message": message, "traceback": traceback}
        return self.handle(machine.Raised(member))


def reports(actions: list[Action]) -> list[str]:
    """What algo-1 is told, beside the failures."""
    return [action.message["op"] for action in actions if isinstance(action, machine.TellMaster)]


def failures(actions: list[Action]) -> list[str]:
    """The processes and messages of the failures that algo-1 is told."""
    return [f"{a.failure.process}: {a.failure.message}" for a in actions if isinstance(a, machine.Fail)]


def told(actions: list[Action]) -> list[str]:
    """The events that the supervisor is told; phases by their names."""
    return [
        str(action.data["name"]) if action.kind == "phase" else action.kind
        for action in actions
        if isinstance(action, machine.TellSupervisor)
    ]


def overs(actions: list[Action]) -> list[machine.Over]:
    return [action for action in actions if isinstance(action, machine.Over)]


# --- the start ---


def test_a_host_starts_its_processes_when_all_hosts_are_ready(tmp_path: Path) -> None:
    share = Share(tmp_path, "rank 0", "rank 1", ports=(7000,))
    ready = machine.TellMaster({"op": "ready", "ports": [7000]})
    assert share.handle(machine.Prepared(share.members, (7000,))) == [ready]
    actions = share.handle(machine.Go(share.plan))
    assert told(actions) == ["cluster_ready"] and PlainAction.LAUNCH in actions
    first, second = share.members.values()
    first.pid = 7
    assert told(share.handle(machine.ProcessStarted(first))) == ["process_started"]
    second.importing = True
    assert told(share.handle(PlainEvent.IMPORTING)) == ["ranks_started"]
    second.pid = 8
    assert told(share.handle(machine.ProcessStarted(second))) == ["process_started"]
    assert failures(share.advance(1000.0)) == []


def test_ranks_that_do_not_start_in_time_are_named(tmp_path: Path) -> None:
    share = Share(tmp_path, "rank 0", "rank 1")
    share.handle(machine.Prepared(share.members))
    share.handle(machine.Go(share.plan))
    share.members["rank 0"].pid = 7
    assert failures(share.advance(9.9)) == []
    assert failures(share.advance(0.2)) == ["None: rank 1 did not start within 10 s."]


def test_imports_may_take_any_time_but_not_in_silence(tmp_path: Path) -> None:
    share = Share(tmp_path, "rank 0")
    share.handle(machine.Prepared(share.members))
    share.handle(machine.Go(share.plan))
    share.members["rank 0"].importing = True
    for _ in range(10):
        assert not share.advance(9.0)
        share.handle(PlainEvent.IMPORTER_HEARD)
    assert share.advance(10.0) == [machine.BlameImporter(("rank 0",))]


def test_a_host_gives_up_when_algo_1_is_silent_before_all_are_ready(tmp_path: Path) -> None:
    share = Share(tmp_path, host="algo-2")
    for _ in range(3):
        share.handle(PlainEvent.MASTER_HEARD)
        assert share.advance(9.9) == []
    (over,) = overs(share.advance(0.2))
    assert over.outcome.failure is not None and over.outcome.failure.cause is Cause.HOST_LOST
    assert over.outcome.failure.message == "algo-1 was lost: it has not answered for 10 s."
    running = Share(tmp_path, "rank 1", host="algo-2")
    running.handle(PlainEvent.MASTER_HEARD)
    running.start()
    assert running.advance(1000.0) == []


# --- which process's end is the cause ---


@pytest.mark.parametrize(
    ("name", "how", "by", "grace"),
    [
        ("rank 1", {"code": 3}, StartedBy.TOOLKIT, 0.0),
        ("rank 1", {"code": None, "signal": signal.SIGKILL}, StartedBy.MPIRUN, 0.0),
        ("rank 1", {"code": 1, "printed": "Connection reset by peer"}, StartedBy.TOOLKIT, machine.CONSEQUENCE_GRACE),
        ("rank 1", {"code": 143, "told": True}, StartedBy.TOOLKIT, 0.0),
        ("rank 1", {"code": 143, "told": True}, StartedBy.MPIRUN, machine.FAREWELL),
        ("rank 1", {"code": None, "vanished": True}, StartedBy.TOOLKIT, 0.0),
        ("rank 1", {"code": None, "vanished": True}, StartedBy.MPIRUN, 2 * machine.LAUNCHER_GRACE),
        ("mpirun", {"code": 1}, StartedBy.MPIRUN, machine.LAUNCHER_GRACE),
        ("mpirun", {"code": None, "signal": signal.SIGKILL}, StartedBy.MPIRUN, 0.0),
        ("mpirun", {"code": 1, "printed": LOST_DAEMON}, StartedBy.MPIRUN, 2 * machine.DAEMON_GRACE),
        ("orted", {"code": 1}, StartedBy.MPIRUN, machine.DAEMON_GRACE),
        ("orted", {"code": None, "signal": signal.SIGKILL}, StartedBy.MPIRUN, 0.0),
        ("ps", {"code": 1}, StartedBy.TOOLKIT, 0.0),
    ],
)
def test_an_end_that_may_be_a_consequence_waits_for_its_cause(
    name: str, how: dict[str, Any], by: StartedBy, grace: float, tmp_path: Path
) -> None:
    share = Share(tmp_path, "rank 0", "rank 1", "mpirun", "orted", "ps", by=by).start()
    at_once = failures(share.end(name, **how))
    if grace == 0.0:
        assert len(at_once) == 1 and at_once[0].startswith(f"{name}: ")
        return
    assert at_once == [] and failures(share.advance(grace - 0.01)) == []
    (failure,) = failures(share.advance(0.02))
    assert failure.startswith(f"{name}: ")


def test_the_cause_is_reported_though_its_consequence_is_seen_first(tmp_path: Path) -> None:
    share = Share(tmp_path, "rank 0", "rank 1", "mpirun", by=StartedBy.MPIRUN).start()
    share.end("rank 0", 143, told=True)
    share.end("mpirun", 1)
    share.raises("rank 1")
    assert failures(share.end("rank 1", 1)) == ["rank 1: ValueError: no data (exited with code 1)"]
    failure = Failure(cause=Cause.PROCESS, message="no data")
    (over,) = overs(share.handle(machine.JobFailed(failure)))
    assert over == machine.Over(Outcome(failure=failure), FAILURE_GRACE)
    assert share.advance(100.0) == []  # the consequences are not reported any more


def test_a_rank_that_raised_has_a_moment_to_end_by_itself(tmp_path: Path) -> None:
    share = Share(tmp_path, "rank 0", "rank 1").start()
    assert reports(share.raises("rank 1")) == ["raised"]
    assert failures(share.advance(machine.EXCEPTION_GRACE - 0.01)) == []
    assert failures(share.advance(0.02)) == ["rank 1: ValueError: no data"]


def test_an_exception_of_another_ranks_failure_waits_longer(tmp_path: Path) -> None:
    share = Share(tmp_path, "rank 0", "rank 1").start()
    assert share.raises("rank 1", "Connection reset by peer") == []
    assert failures(share.advance(machine.CONSEQUENCE_GRACE - 0.01)) == []
    assert len(failures(share.advance(0.02))) == 1


def test_an_exception_that_a_process_survives_is_none(tmp_path: Path) -> None:
    share = Share(tmp_path, "rank 0", "rank 1").start()
    share.raises("rank 1")
    assert "survived" in reports(share.end("rank 1", 0))
    assert failures(share.advance(1000.0)) == []


def test_an_exception_of_a_child_is_not_the_ranks(tmp_path: Path) -> None:
    share = Share(tmp_path, "rank 0").start()
    member = share.members["rank 0"]
    member.exception = {"pid": 99, "type": "ValueError", "message": "", "traceback": ""}
    assert share.handle(machine.Raised(member)) == []
    assert share.advance(5.0) == []


def test_a_rank_that_died_with_its_daemon_blames_the_daemon(tmp_path: Path) -> None:
    share = Share(tmp_path, "rank 1", "orted", host="algo-2", by=StartedBy.MPIRUN).start()
    share.end("rank 1", None, vanished=True, signal=signal.SIGKILL)
    assert failures(share.end("orted", None, signal=signal.SIGKILL)) == ["orted: was killed by SIGKILL"]


def test_a_daemon_that_mpirun_ended_leaves_the_word_to_mpirun(tmp_path: Path) -> None:
    share = Share(tmp_path, "rank 1", "orted", host="algo-2", by=StartedBy.MPIRUN).start()
    share.end("rank 1", None, vanished=True, signal=signal.SIGKILL)
    share.end("orted", 0)
    assert failures(share.advance(2 * machine.LAUNCHER_GRACE + machine.FAREWELL - 0.01)) == []
    assert failures(share.advance(0.02)) == ["orted: exited with code 0 while ranks were running"]


@pytest.mark.parametrize(("others_wait", "grace"), [(True, 0.0), (False, machine.FAREWELL)])
def test_a_remote_shell_that_was_killed_alone_is_the_cause(others_wait: bool, grace: float, tmp_path: Path) -> None:
    share = Share(tmp_path, "rank 0", "mpirun", by=StartedBy.MPIRUN).start()
    if others_wait:
        share.shells[1] = object()
    failure = Failure(cause=Cause.PROCESS, message="mpirun's remote shell to algo-2 was killed.", process="rsh")
    share.handle(machine.ShellGone(failure))
    assert failures(share.advance(machine.LAUNCHER_GRACE + grace - 0.01)) == []
    assert failures(share.advance(0.02)) == [f"rsh: {failure.message}"]


def test_mpiruns_good_end_explains_its_remote_shells(tmp_path: Path) -> None:
    share = Share(tmp_path, "rank 0", "mpirun", by=StartedBy.MPIRUN).start()
    share.handle(machine.ShellGone(Failure(cause=Cause.PROCESS, message="killed")))
    share.end("rank 0")
    assert reports(share.end("mpirun"))[-1] == "done"
    assert failures(share.advance(1000.0)) == []


def test_a_port_that_was_taken_is_a_cause_of_its_own(tmp_path: Path) -> None:
    share = Share(tmp_path, "rank 0", ports=(7000,)).start()
    (fail,) = [a for a in share.end("rank 0", 1, "EADDRINUSE") if isinstance(a, machine.Fail)]
    assert fail.failure.cause is Cause.PORT_TAKEN


def test_a_diverged_metric_fails_a_host_that_runs_or_serves(tmp_path: Path) -> None:
    failure = Failure(cause=Cause.UNSOUND, message="NaN")
    share = Share(tmp_path, "rank 0", "worker", has_servers=True).start()
    assert failures(share.handle(machine.RankDiverged(failure))) == ["None: NaN"]
    share.handle(PlainEvent.STOP)
    assert share.handle(machine.RankDiverged(failure)) == []


# --- the end of the ranks ---


def test_a_host_is_done_when_its_ranks_and_mpirun_have_ended(tmp_path: Path) -> None:
    share = Share(tmp_path, "rank 0", "rank 1", "mpirun", "orted", by=StartedBy.MPIRUN, sagemaker_mpi_enabled="true")
    share.start()
    assert told(share.end("rank 0")) == ["process_ended"]
    actions = share.end("rank 1")
    assert told(actions) == ["process_ended", "ranks_ended"] and reports(actions) == ["evidence"]
    assert reports(share.end("mpirun")) == ["done"]
    assert share.end("orted") == []
    assert overs(share.handle(PlainEvent.FINISH)) == [machine.Over(Outcome(), 0.0)]


def test_a_rank_whose_failure_waits_for_its_cause_has_not_ended_well(tmp_path: Path) -> None:
    share = Share(tmp_path, "rank 0", "rank 1").start()
    share.end("rank 1", 1, "Connection reset by peer")
    assert "done" not in reports(share.end("rank 0", 0))
    assert len(failures(share.advance(machine.CONSEQUENCE_GRACE))) == 1


def test_ranks_that_only_serve_do_not_hold_the_job(tmp_path: Path) -> None:
    share = Share(tmp_path, "rank 0", "worker", "ps", has_servers=True).start()
    share.end("rank 0")
    share.members["worker"].servers.add(share.members["worker"].pid)
    assert reports(share.handle(PlainEvent.SERVING)) == ["done"]
    assert overs(share.handle(PlainEvent.FINISH)) == [machine.Over(Outcome(), FAILURE_GRACE)]


def test_who_still_runs_after_rank_0_is_said_once(tmp_path: Path) -> None:
    share = Share(tmp_path, "rank 0", "worker", has_servers=True).start()
    share.end("rank 0")
    assert share.advance(machine.REMARK_AFTER - 0.1) == []
    assert share.advance(100.0) == [PlainAction.SAY_WHO_RUNS]


def test_a_killed_worker_of_parameter_servers_starts_again_so_many_times(tmp_path: Path) -> None:
    share = Share(
        tmp_path,
        "worker",
        host="algo-2",
        has_servers=True,
        restarts=1,
        sagemaker_parameter_server_enabled="true",
        fleetfit_parameter_server_cluster_spec='"coordinator"',
    ).start()
    actions = share.end("worker", None, signal=signal.SIGKILL)
    (revive,) = [action for action in actions if isinstance(action, machine.Revive)]
    assert (revive.process.name, revive.count) == ("worker", 1)
    assert told(actions)[-1] == "worker_restarted" and failures(actions) == []
    share.members["worker"] = again = ClusterProcess(name="worker", role=Role.RANK, rank=1, pid=9, revivals=1)
    share.handle(machine.ProcessStarted(again))
    assert failures(share.end("worker", None, signal=signal.SIGKILL)) == ["worker: was killed by SIGKILL"]


# --- a stop ---


def test_a_stop_asks_all_hosts_and_gives_the_ranks_time_to_save(tmp_path: Path) -> None:
    share = Share(tmp_path, "rank 0", "rank 1").start()
    assert share.handle(PlainEvent.STOP_ASKED) == [machine.TellMaster({"op": "stop"})]
    actions = share.handle(PlainEvent.STOP)
    assert told(actions) == ["stopping"] and PlainAction.STOP_RANKS in actions
    assert share.handle(PlainEvent.STOP) == []
    assert failures(share.end("rank 0", 1)) == []
    assert reports(share.end("rank 1", 143)) == ["stopped"]
    assert overs(share.handle(PlainEvent.FINISH)) == [machine.Over(Outcome(stopped=True), 0.0)]


def test_another_host_stops_without_waiting_for_algo_1(tmp_path: Path) -> None:
    share = Share(tmp_path, "rank 1", host="algo-2").start()
    actions = share.handle(PlainEvent.STOP_ASKED)
    assert reports(actions) == ["stop"] and PlainAction.STOP_RANKS in actions


def test_a_host_that_stops_does_not_miss_algo_1(tmp_path: Path) -> None:
    share = Share(tmp_path, "rank 1", host="algo-2", stop_grace=100.0)
    share.handle(PlainEvent.MASTER_HEARD)
    share.handle(machine.Prepared(share.members, share.ports))
    share.handle(PlainEvent.STOP)
    assert not any(over.outcome.failure for over in overs(share.advance(60.0)))


def test_ranks_that_do_not_end_in_time_are_ended(tmp_path: Path) -> None:
    share = Share(tmp_path, "rank 0").start()
    share.handle(PlainEvent.STOP)
    assert share.advance(4.9) == []
    actions = share.advance(0.2)
    assert machine.Say("the ranks did not end within 5 s of SIGTERM.") in actions
    assert overs(actions) == [machine.Over(Outcome(stopped=True), 0.0)]


def test_a_second_stop_ends_the_host_at_once(tmp_path: Path) -> None:
    share = Share(tmp_path, "rank 0").start()
    share.handle(PlainEvent.STOP_ASKED)
    share.handle(PlainEvent.STOP)
    assert overs(share.handle(PlainEvent.STOP_ASKED)) == [machine.Over(Outcome(stopped=True), 0.0)]


def test_a_rank_that_starts_while_the_job_stops_is_told_too(tmp_path: Path) -> None:
    share = Share(tmp_path, "rank 0")
    share.handle(machine.Prepared(share.members))
    share.handle(machine.Go(share.plan))
    assert reports(share.handle(PlainEvent.STOP)) == ["stopped"]  # nothing runs that could save
    share.members["rank 0"].pid = 7
    assert PlainAction.STOP_RANKS in share.handle(machine.ProcessStarted(share.members["rank 0"]))


@pytest.mark.parametrize("event", [PlainEvent.STOP_ASKED, PlainEvent.STOP])
def test_a_stop_while_the_code_is_being_prepared_ends_the_host(event: Event, tmp_path: Path) -> None:
    share = Share(tmp_path, "rank 0")
    assert overs(share.handle(event)) == [machine.Over(Outcome(stopped=True), FAILURE_GRACE)]
    assert share.handle(machine.Go(share.plan)) == []
    assert share.machine.state is HostStage.OVER


# --- a failure ---


def test_another_host_ends_though_algo_1_says_nothing(tmp_path: Path) -> None:
    share = Share(tmp_path, "rank 1", host="algo-2").start()
    assert failures(share.end("rank 1", 3)) == ["rank 1: exited with code 3"]
    failure = Failure(cause=Cause.PROCESS, message="exited with code 3")
    share.handle(machine.Reported(failure))
    assert share.advance(machine.FAREWELL - 0.01) == []
    assert overs(share.advance(0.02)) == [machine.Over(Outcome(failure=failure), FAILURE_GRACE)]


def test_the_first_verdict_stays_and_may_only_be_hurried(tmp_path: Path) -> None:
    share = Share(tmp_path, "rank 0").start()
    share.handle(machine.JobFailed(Failure(cause=Cause.PROCESS, message="first")))
    assert share.handle(machine.JobFailed(Failure(cause=Cause.PROCESS, message="second"))) == []
    assert share.handle(machine.MasterLost("gone")) == []
    assert share.handle(machine.HostFailed(Failure(cause=Cause.PROCESS, message="third"))) == []
    assert overs(share.handle(PlainEvent.END_ASKED)) == [machine.Over(Outcome(stopped=True), 0.0)]
    assert told(share.end("rank 0", None, signal=signal.SIGTERM)) == ["process_ended", "ranks_ended"]
