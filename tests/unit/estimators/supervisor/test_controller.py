"""The course of an elastic training, against a backend, a driver and a clock that the test moves."""

from __future__ import annotations

import contextlib
import json
import types
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moved import MovedLoop

from container.contract.failures import Cause, Failure
from container.contract.strategies import ElasticHorovod
from container.contract.wire import Event
from container.system import progress
from estimators.backends.base import HostEnd
from estimators.backends.hosts.membership import MembershipListener, Places
from estimators.supervisor.elastic import deciding
from estimators.supervisor.elastic.controller import ElasticController
from estimators.supervisor.elastic.course import TRANSITIONS, State, TrainingEvent
from estimators.supervisor.elastic.members import Roster, WorkerState
from estimators.supervisor.transitions import IllegalTransition


class World(MovedLoop):
    """The loop, the supervisor, the backend, its source of hosts and Horovod's driver in one, in a time of its own."""

    def __init__(
        self,
        hosts: int = 2,
        source: bool | None = None,
        start_timeout: float = 60.0,
        hang_timeout: float | None = None,
        **strategy: Any,
    ) -> None:
        super().__init__()
        self.said: list[str] = []
        self.failure: Failure | None = None
        self.preempted: list[str] = []
        self.asked: list[tuple[str, dict[str, Any]]] = []  # what toolkits were told
        self.offers: list[tuple[str, ...]] = []
        self.finished = False
        self.membership_told: MembershipListener | None = None
        self.initial = tuple(f"algo-{number}" for number in range(1, hosts + 1))
        self.added: list[str] = []
        self.located: dict[str, str] = {}
        self.killed: list[str] = []
        # the backend's
        self.locates = True
        self.protected: set[int] = set()
        self.record = self
        self.path = None
        self.spec = self
        self.inputs: list[object] = []
        self.title, self.decides = "the board", bool(source)
        self._has_source = source is not None
        self.pid = 1
        self.controller = ElasticController(
            self,  # type: ignore[arg-type]
            self,  # type: ignore[arg-type]
            self,  # type: ignore[arg-type]
            types.SimpleNamespace(  # type: ignore[arg-type]
                strategy=ElasticHorovod(warm=True, **strategy), hosts=self.initial, hang_timeout=hang_timeout
            ),
            types.SimpleNamespace(python="python", start_timeout=start_timeout),  # type: ignore[arg-type]
            self.initial,
            driver=self._driver,  # type: ignore[arg-type]
        )
        self.controller.start()

    # --- the supervisor ---

    def event(self, kind: str, **data: Any) -> None: ...

    def say(self, *words: Any) -> None:
        if len(words) == 1:
            self.said.append(words[0])
        else:  # the backend's
            self.asked.append((words[0], json.loads(words[1])))

    def fail_job(self, failure: Failure) -> None:
        assert self.failure is None
        self.failure = failure

    def preempt(self, host: str, notice_s: float) -> None:
        self.preempted.append(host)

    def interrupted(self, host: str, notice_s: float) -> None:
        self.controller.hosts.interrupt(host, notice_s)

    def await_hosts(self) -> list[str]:
        return []

    def note_hosts(self, hosts: list[dict[str, Any]]) -> None: ...

    # --- the backend and its source ---

    def membership(self) -> World | None:
        return self if self._has_source else None

    def start(self, begun: MembershipListener | Coroutine[Any, Any, None]) -> None:
        """Begin to tell, as a source; run a coroutine, as a loop."""
        if isinstance(begun, Coroutine):
            with contextlib.suppress(StopIteration):
                begun.send(None)
        else:
            self.membership_told = begun

    def places(self, found: Places) -> None:
        assert self.membership_told is not None
        self.membership_told.places(found)

    def meeting_place(self) -> tuple[str, str]:
        return "127.0.0.1", "lo"

    def next_host(self) -> str:
        return f"algo-{len(self.initial) + len(self.added) + 1}"

    def add_host(self, host: str) -> None:
        self.added.append(host)

    def locate(self, host: str, place: str) -> None:
        self.located[host] = place

    def withdraw(self, host: str) -> None:
        self.ends(host)

    def kill_host(self, host: str) -> None:
        self.killed.append(host)
        self.ends(host, 137)

    async def refresh_checkpoints(self, host: str) -> None: ...

    # --- the driver ---

    def _driver(self, *arguments: Any, **more: Any) -> World:
        self.driver_says = self.controller.from_driver
        return self

    def send(self, message: dict[str, Any]) -> None:
        if message["op"] == "workers":
            self.offers.append(tuple(message["workers"]))

    def close(self) -> None:
        self.finished = True

    def meet(self) -> None:
        """The driver gives places to those that it was told of, and they meet."""
        for name in self.offers[-1]:
            self.driver_says({"op": "start", "worker": name, "environment": {}})
        self.driver_says({"op": "membership", "generation": 0, "workers": list(self.offers[-1])})

    # --- what happens on hosts ---

    def tells(self, host: str, kind: str, **data: Any) -> None:
        self.controller.host_event(Event(kind=kind, host=host, data=data))

    def up(self, *hosts: str) -> None:
        """The hosts come up, and their workers become ready."""
        for host in hosts:
            self.tells(host, "host_ready")
        for worker in list(self.controller.roster.workers.values()):
            if worker.host in hosts and worker.state is WorkerState.PREPARING:
                self.tells(worker.host, "worker_ready", worker=worker.name)

    def dies(self, worker: str, code: int = 1) -> None:
        host = worker.partition(".")[0]
        self.tells(host, "worker_ended", worker=worker, exit_code=code)

    def ends(self, host: str, code: int = 0) -> None:
        self.controller.hosts.ended(HostEnd(host=host, exit_code=code))


def begun(**more: Any) -> World:
    world = World(**more)
    world.up(*world.initial)
    world.meet()
    return world


def test_it_begins_when_all_are_there_or_their_time_is_over() -> None:
    world = World(workers=1, start_timeout=10.0)
    world.up("algo-2")
    assert world.offers == []
    world.advance(10.0)
    assert world.said == ["algo-1 did not come up within 10 s."]
    assert world.offers == [("algo-2.0.0",)]
    world = World()
    world.up("algo-2")
    world.advance(60.0)
    assert "the training needs 2 workers to begin (instance_count=2), but has only 1. It waits" in world.said[-1]
    world.up("algo-1")
    assert world.offers == [("algo-1.0.0", "algo-2.0.0")]


def test_after_a_loss_the_others_meet_by_themselves_before_changes_are_told() -> None:
    world = begun(hosts=3, min_hosts=1, cooldown=(0.5, 1.0), max_hosts=4)
    world.dies("algo-1.0.0")
    assert world.controller.state is State.SETTLING
    assert world.offers == [("algo-1.0.0", "algo-2.0.0", "algo-3.0.0")]
    world.advance(0.6)  # its cooldown is over, and another one is prepared there
    world.tells("algo-1", "worker_ready", worker="algo-1.0.1")
    assert len(world.offers) == 1
    world.advance(1.5)
    assert world.offers[-1] == ("algo-2.0.0", "algo-3.0.0", "algo-1.0.1")
    world.meet()
    assert world.controller.state is State.TRAINING
    assert world.said[-1] == "3 -> 3 workers (joined: algo-1; left: algo-1)"


def test_with_too_few_it_waits_and_ends_in_vain_when_nobody_has_its_state() -> None:
    world = begun(min_hosts=2, cooldown=(5.0, 5.0))
    world.dies("algo-1.0.0")
    assert world.controller.state is State.SHORT
    assert "the training needs at least 2 workers, but has only 1. It waits for more" in world.said[-1]
    assert world.said[-1].endswith("Missing: algo-1.")
    world.advance(6.0)
    world.tells("algo-1", "worker_ready", worker="algo-1.0.1")
    assert world.offers[-1] == ("algo-2.0.0", "algo-1.0.1")
    world.meet()
    assert "2 workers are ready again: the training goes on." in world.said
    world.dies("algo-2.0.0")
    world.dies("algo-1.0.1")
    assert world.failure is None
    world.advance(0.0)
    assert world.failure is not None and world.finished and world.controller.over


def test_a_lost_host_is_replaced_after_its_cooldown_and_a_spare_one_joins_at_once() -> None:
    world = begun(min_hosts=1, cooldown=(5.0, 5.0))
    world.ends("algo-1", 137)
    world.advance(4.9)
    assert world.added == []
    world.advance(0.2)
    assert world.added == ["algo-3"]
    world = begun(min_hosts=1, cooldown=(5.0, 5.0), spares=1)
    assert world.added == ["algo-3"]
    world.up("algo-3")
    world.ends("algo-1", 137)
    world.advance(2.1)
    assert "algo-3, a spare host, joins" in world.said
    assert world.offers[-1] == ("algo-2.0.0", "algo-3.0.0")
    world.advance(3.0)
    assert world.added == ["algo-3", "algo-4"]


def cannot_take_part(world: World, host: str) -> None:
    """A host's code cannot be installed, say."""
    failure = Failure(cause=Cause.CONFIGURATION, message="no such package.", host=host)
    world.controller.host_event(Event(kind="failure", host=host, data=failure.to_dict()))
    world.ends(host, 1)


@pytest.mark.parametrize("hosts", [1, 2, 8])
def test_a_job_fails_when_none_of_its_hosts_can_take_part(hosts: int) -> None:
    world = World(hosts=hosts, min_hosts=1, cooldown=(1.0, 1.0))
    for host in world.initial:
        assert world.failure is None
        cannot_take_part(world, host)
        world.advance(1.1)
    assert world.failure is not None and world.failure.message == "no such package."
    assert (world.failure.host, world.failure.cause) == (world.initial[-1], Cause.CONFIGURATION)
    assert len(world.added) == hosts - 1
    world.advance(100.0)
    assert len(world.added) == hosts - 1


def test_a_job_does_not_fail_for_one_machine_while_another_host_may_still_come() -> None:
    world = World(hosts=2, min_hosts=1, cooldown=(1.0, 1.0))
    for number in (1, *range(3, 9)):
        cannot_take_part(world, f"algo-{number}")
        world.advance(1.1)
    assert world.failure is None and world.said.count("algo-1 was lost: no such package.") == 1
    world.up("algo-2", "algo-9")
    assert world.offers == [("algo-2.0.0", "algo-9.0.0")]
    world = World(hosts=1, min_hosts=1, max_hosts=2, cooldown=(1.0, 1.0))
    world.controller.hosts.add(1)
    cannot_take_part(world, "algo-2")
    assert world.failure is None


def test_a_source_that_names_fewer_hosts_than_were_asked_for_and_none_of_use() -> None:
    world = World(hosts=2, source=True, min_hosts=1, cooldown=(1.0, 1.0))
    world.places({"a": 1})
    cannot_take_part(world, "algo-1")
    for _ in range(2):
        assert world.failure is None
        world.advance(1.1)
        cannot_take_part(world, world.added[-1])
    assert world.failure is not None and world.failure.message == "no such package."


def test_a_host_that_is_killed_before_it_comes_is_replaced() -> None:
    world = World(hosts=1, min_hosts=1, cooldown=(1.0, 1.0))
    killed = Failure(cause=Cause.PROCESS, message="was killed by SIGKILL.", host="algo-1", signal=9)
    world.controller.hosts.ended(HostEnd(host="algo-1", signal=9, failure=killed))
    world.advance(1.1)
    assert world.failure is None and world.added == ["algo-2"]
    world.up("algo-2")
    assert world.offers == [("algo-2.0.0",)]


def test_hosts_that_are_lost_without_a_word_before_any_has_come_end_the_job() -> None:
    world = World(hosts=2, min_hosts=1, cooldown=(1.0, 1.0))
    for number in range(1, 11):
        assert world.failure is None
        world.ends(f"algo-{number}", 137)
        world.advance(1.1)
    assert world.failure is not None and world.failure.cause is Cause.HOST_LOST


def test_hosts_that_cannot_take_part_come_ever_more_seldom_in_a_training_that_has_begun() -> None:
    world = begun(min_hosts=1, cooldown=(5.0, 20.0))
    world.ends("algo-1", 137)
    world.advance(5.1)
    for number, wait in enumerate((5.0, 10.0, 20.0, 20.0), 3):
        assert world.added[-1] == f"algo-{number}"
        cannot_take_part(world, f"algo-{number}")
        assert world.failure is None and f"algo-{number} was lost: no such package." in world.said
        world.advance(wait - 0.1)
        assert world.added[-1] == f"algo-{number}"
        world.advance(0.2)
    world.up("algo-7")
    assert world.offers[-1] == ("algo-2.0.0", "algo-7.0.0")
    world.meet()
    world.dies("algo-7.0.0")  # whose own failures count by themselves
    assert "no new worker starts on this host for 5.0 s" in world.said[-1]


def test_a_host_leaves_when_the_others_have_met_without_it() -> None:
    world = begun(hosts=3, min_hosts=1)
    world.controller.hosts.remove("algo-1")
    assert world.offers[-1] == ("algo-2.0.0", "algo-3.0.0")
    assert ("algo-1", {"op": "finish"}) not in world.asked
    world.meet()
    world.advance(30.0)  # it does not notice that it has no place
    assert world.asked[-1] == ("algo-1", {"op": "end_worker", "worker": "algo-1.0.0"})
    world.dies("algo-1.0.0", 134)
    assert world.asked[-1] == ("algo-1", {"op": "finish"})
    world.ends("algo-1")
    assert world.said[-1] == "algo-1 has left"
    world.advance(100.0)
    assert world.added == []
    with pytest.raises(ValueError, match="at least 1 host, but would have 0 without algo-3"):
        world.controller.hosts.remove("algo-2")
        world.controller.hosts.remove("algo-3")


def test_a_notice_is_the_jobs_where_nobody_else_trains() -> None:
    world = begun(min_hosts=1)
    world.controller.hosts.interrupt("algo-1", 2.0)
    assert world.preempted == [] and world.offers[-1] == ("algo-2.0.0",)
    world.controller.hosts.interrupt("algo-2", 2.0)
    assert world.preempted == ["algo-2"]
    world.advance(2.0)
    assert world.killed == ["algo-1"]


def test_a_host_that_is_about_to_leave_is_not_counted_when_another_is_to_come() -> None:
    world = begun(min_hosts=1, cooldown=(1.0, 1.0))  # and no more than two
    with pytest.raises(ValueError, match="the job has 2 hosts, so 1 more would exceed max_hosts=2"):
        world.controller.hosts.add(1)
    world.controller.hosts.interrupt("algo-1", 60.0)
    assert world.controller.hosts.add(1) == ["algo-3"]
    world.up("algo-3")
    world.meet()
    world.ends("algo-2", 137)
    world.advance(1.1)
    assert world.added == ["algo-3", "algo-4"]


def test_it_is_complete_when_a_member_is_through_and_fails_when_all_have_failed() -> None:
    world = begun()
    world.dies("algo-1.0.0", 0)
    world.dies("algo-2.0.0", 1)
    world.driver_says({"op": "finished"})
    assert world.failure is None and world.controller.over
    assert world.asked[-2:] == [("algo-1", {"op": "finish"}), ("algo-2", {"op": "finish"})]
    world = begun()
    world.dies("algo-1.0.0", 1)
    world.driver_says({"op": "finished", "error": "the reset limit is reached"})
    assert world.failure is not None and world.failure.message == "elastic training: the reset limit is reached."


def test_hosts_that_have_not_come_yet_hold_up_no_job_that_is_complete() -> None:
    world = begun(max_hosts=4)
    world.controller.hosts.add(2)
    ends, world.withdraw = world.withdraw, lambda host: ends(host) if host == "algo-3" else None  # type: ignore[method-assign]
    for name in ("algo-1", "algo-2"):
        world.dies(f"{name}.0.0", 0)
    world.driver_says({"op": "finished"})
    for name in ("algo-1", "algo-2"):
        world.ends(name)
    assert world.controller.roster.running == ["algo-4"]  # to which something is being brought
    world.up("algo-4")
    assert world.asked[-1] == ("algo-4", {"op": "finish"})
    world.ends("algo-4")
    assert world.controller.roster.running == [] and world.failure is None


def test_too_few_for_too_long_names_who_is_missing() -> None:
    world = begun(min_workers=2, min_hosts=1)
    world.dies("algo-2.0.0")
    world.driver_says({"op": "too_few"})
    assert world.failure is not None and world.failure.cause is Cause.TIMEOUT
    assert "1 of at least 2 (min_workers=2); missing: algo-2." in world.failure.message


def test_a_wait_for_workers_is_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """That has a limit of its own."""
    worlds: list[World] = []
    clock = types.SimpleNamespace(monotonic=lambda: worlds[0].now if worlds else 0.0)
    monkeypatch.setattr(progress, "time", clock)
    worlds.append(begun(min_workers=2, min_hosts=1, hang_timeout=3.0, cooldown=(60.0, 60.0)))
    [world] = worlds
    world.dies("algo-2.0.0")
    world.driver_says({"op": "waiting"})
    world.advance(20.0)
    assert "dump" not in [message["op"] for _, message in world.asked] and world.failure is None
    world.driver_says({"op": "enough"})
    world.advance(10.0)
    assert [host for host, message in world.asked if message["op"] == "dump"] == ["algo-1", "algo-2"]
    assert world.failure is not None and "no rank has printed or reported anything for 3 s" in world.failure.message


def test_workers_that_end_before_they_train_fail_the_job() -> None:
    world = World(hosts=1, cooldown=(0.1, 0.1))
    world.tells("algo-1", "host_ready")
    for number in range(3):
        world.dies(f"algo-1.0.{number}", 0)
        world.advance(0.2)
    assert world.failure is not None
    assert "the workers end before the training begins, without calling hvd.init()." in world.failure.message


def test_a_source_that_decides_gives_hosts_their_places() -> None:
    world = World(source=True, workers=1, min_hosts=1, max_hosts=3)
    world.up("algo-1", "algo-2")
    assert world.offers == []  # nobody knows for whom they stand
    world.places({"a": 1})
    world.up("algo-1")
    assert world.located == {"algo-1": "a"} and world.offers == [("algo-1.0.0",)]
    world.meet()
    assert "the board lists 1 of the 2 initial hosts, so algo-2 leaves" in world.said
    world.places({"a": 1, "b": 2})
    assert world.located["algo-3"] == "b"
    with pytest.raises(ValueError, match="the board decides which hosts the job has"):
        world.controller.hosts.add(1)
    world.up("algo-3")
    world.meet()
    assert world.membership_told is not None
    world.membership_told.leaving("b", 9.0)
    assert "algo-3 has a preemption notice: the host leaves within 9 s" in world.said


def test_a_source_of_places_bounds_how_many_hosts_there_are() -> None:
    world = World(source=False, min_hosts=1, max_hosts=4, spares=1, cooldown=(1.0, 1.0))
    world.places({"a": None, "b": None})
    world.up("algo-1", "algo-2")
    world.meet()
    assert world.added == []  # there is no place for a spare one
    with pytest.raises(ValueError, match=r"the board has 2 places \(a, b\), and the job uses 2 of them. There is no"):
        world.controller.hosts.add(1)
    world.ends("algo-1", 137)
    world.places({"b": None})  # with the machine itself
    world.advance(2.0)
    assert world.added == []
    world.places({"b": None, "c": None})
    assert world.added == ["algo-3"]
    world.places({"b": None, "c": None, "d": None})
    assert world.added == ["algo-3", "algo-4"] and world.controller.roster.hosts["algo-4"].spare


def test_only_what_is_in_the_table_may_happen() -> None:
    assert TRANSITIONS.following(State.GATHERING, TrainingEvent.BEGIN) is State.FORMING
    with pytest.raises(IllegalTransition, match="LOSS cannot happen to an elastic training that is GATHERING"):
        TRANSITIONS.following(State.GATHERING, TrainingEvent.LOSS)
    assert {state for state, _ in TRANSITIONS} == set(State)
    assert all(TRANSITIONS.following(state, TrainingEvent.END) is State.OVER for state in State)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_whatever_happens_only_who_is_alive_is_offered(data: st.DataObject) -> None:
    """Hosts and workers come, die, leave and get notice in any order: none is dead, none too many."""
    source = data.draw(st.sampled_from([None, False, True]))
    world = World(hosts=2, source=source, min_hosts=1, max_hosts=4, workers=1, cooldown=(0.5, 2.0), spares=1)
    roster = world.controller.roster
    for _ in range(data.draw(st.integers(1, 40))):
        if world.controller.over:
            break
        what = data.draw(
            st.sampled_from(["up", "die", "end", "leave", "notice", "add", "meet", "wait", "places", "kill"])
        )
        running = list(roster.running)
        host = data.draw(st.sampled_from(running)) if running else "algo-1"
        alive = [worker.name for worker in roster.workers.values() if worker.state is not WorkerState.ENDED]
        offers = len(world.offers)
        try:
            if what == "up" and not roster.hosts[host].up:
                world.up(host)
            elif what == "up":
                for worker in [w for w in roster.workers.values() if w.state is WorkerState.PREPARING]:
                    world.tells(worker.host, "worker_ready", worker=worker.name)
            elif what == "die" and alive:
                world.dies(data.draw(st.sampled_from(alive)), data.draw(st.sampled_from([0, 1])))
            elif what == "end":
                world.ends(host, data.draw(st.sampled_from([0, 137])))
            elif what == "leave":
                world.controller.hosts.remove(host)
            elif what == "notice":
                world.controller.hosts.interrupt(host, 1.0)
            elif what == "kill":
                world.controller.hosts.lose(host)
            elif what == "add":
                world.controller.hosts.add(1)
            elif what == "meet" and world.offers:
                if all(roster.workers[name].state is not WorkerState.ENDED for name in world.offers[-1]):
                    world.meet()
            elif what == "wait":
                world.advance(data.draw(st.sampled_from([0.0, 0.6, 3.0, 40.0])))
            elif what == "places" and source is not None:
                world.places(dict.fromkeys(data.draw(st.lists(st.sampled_from("abcd"), unique=True)), 1))
        except ValueError:
            continue  # it is refused
        for offer in world.offers[offers:]:
            assert len(offer) <= 4 and len(set(offer)) == len(offer)
            assert not [name for name in offer if roster.hosts[roster.workers[name].host].spare]
        assert len(roster.staying) <= 4


@pytest.mark.parametrize(
    ("consequences", "blamed"),
    [(set(), "algo-1.0.0"), ({"algo-1.0.0"}, "algo-2.0.0"), ({"algo-1.0.0", "algo-2.0.0"}, "algo-1.0.0")],
)
def test_the_failure_of_a_training_is_that_of_the_first_rank_that_followed_from_no_other(
    consequences: set[str], blamed: str
) -> None:
    roster = Roster(["algo-1", "algo-2"], 1)
    failures = {}
    for name in roster.hosts:
        worker = roster.new_worker(roster.hosts[name], 0)
        failures[worker.name] = Failure(cause=Cause.PROCESS, message=worker.name)
        worker.ended_with = 1
    roster.take_places(tuple(failures))
    found = deciding.outcome(roster, failures, "no worker is left", consequences)
    assert found is not None and found.message == blamed
