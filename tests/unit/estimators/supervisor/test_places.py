"""Hosts of an elastic job and the places that something outside names for them."""

from __future__ import annotations

from estimators.backends.hosts.membership import MembershipListener
from estimators.supervisor.elastic.members import ElasticHost, HostState
from estimators.supervisor.elastic.places import Places


class Source:
    """Tells nothing by itself."""

    title = "the board"

    def __init__(self, *, decides: bool) -> None:
        self.decides = decides

    def start(self, membership: MembershipListener) -> None: ...

    def close(self) -> None: ...


class Moves:
    """Keeps what it is asked for, and does it to the hosts."""

    def __init__(self, hosts: dict[str, ElasticHost]) -> None:
        self.hosts = hosts
        self.done: list[tuple[object, ...]] = []
        self.stays = True

    def start_host(self, slots: int, place: str) -> str:
        name = f"algo-{len(self.hosts) + 1}"
        self.hosts[name] = ElasticHost(name, slots=slots)
        self.done.append(("start", name, slots, place))
        return name

    def locate(self, host: str, place: str) -> None:
        self.done.append(("locate", host, place))

    def leave(self, host: ElasticHost) -> None:
        host.state = HostState.LEAVING
        self.done.append(("leave", host.name))

    def stay(self, host: ElasticHost) -> bool:
        self.done.append(("stay", host.name))
        if self.stays:
            host.state = HostState.READY
        return self.stays

    def notice(self, host: str, seconds: float) -> None:
        self.hosts[host].state = HostState.LEAVING
        self.done.append(("notice", host, seconds))

    def places_known(self) -> None: ...

    def say(self, text: str) -> None:
        self.done.append((text,))

    def no_places(self, problem: str) -> None:
        self.done.append(("none", problem))

    def taken(self) -> list[tuple[object, ...]]:
        done, self.done = self.done, []
        return done


def of(*initial: str, decides: bool = True, most: int = 3, readers: int | None = None) -> tuple[Places, Moves]:
    hosts = {name: ElasticHost(name, slots=2) for name in initial}
    moves = Moves(hosts)
    return Places(Source(decides=decides), hosts, moves, most=most, slots=2, readers=readers), moves


def test_the_first_hosts_stand_for_the_first_places_and_others_are_started() -> None:
    places, moves = of("algo-1", "algo-2")
    assert places.awaits("algo-1") and not places.known and not places.answered
    places.places({})
    assert places.answered and not places.known
    places.places({"a": 1})
    assert not places.awaits("algo-1") and places.awaits("algo-2") and moves.hosts["algo-1"].slots == 1
    places.places({"a": 1, "b": None, "c": 4, "d": 1})
    assert moves.taken() == [("locate", "algo-1", "a"), ("locate", "algo-2", "b"), ("start", "algo-3", 4, "c")]
    assert places.names == ["a", "b", "c"]  # as many as there may be
    assert (places.place_of("algo-3"), places.place_of("algo-4")) == ("c", None)


def test_who_has_no_place_when_the_training_begins_leaves() -> None:
    places, moves = of("algo-1", "algo-2")
    places.places({"a": 1})
    places.begun()
    assert moves.taken()[1:] == [("the board lists 1 of the 2 initial hosts, so algo-2 leaves",), ("leave", "algo-2")]


def test_a_place_that_goes_has_its_host_leave_and_one_that_comes_back_has_it_stay() -> None:
    places, moves = of("algo-1")
    places.places({"a": 2})
    places.places({})
    assert (places.place_of("algo-1"), places.last_place_of("algo-1")) == (None, "a")
    places.places({"a": 2})
    assert moves.taken() == [("locate", "algo-1", "a"), ("leave", "algo-1"), ("stay", "algo-1")]
    places.places({})
    moves.stays = False  # it has nothing any more that others have
    places.places({"a": 2})
    assert moves.taken() == [("leave", "algo-1"), ("stay", "algo-1"), ("start", "algo-2", 2, "a")]


def test_a_place_that_will_be_taken_is_not_used_until_it_has_gone_and_come_back() -> None:
    places, moves = of("algo-1", "algo-2")
    places.places({"a": 2, "b": 2})
    places.leaving("a", 5.0)
    places.leaving("a", 4.0)  # it leaves already
    places.leaving("algo-2", 3.0)  # a host's own name will do
    places.leaving("c", 3.0)
    assert moves.taken()[2:] == [("notice", "algo-1", 5.0), ("notice", "algo-2", 3.0)]
    assert not places.may_replace("algo-1")
    places.places({"a": 2, "b": 2})
    places.places({"b": 2})
    assert moves.taken() == []
    places.places({"a": 2, "b": 2})
    assert moves.taken() == [("stay", "algo-1")]


def test_a_lost_host_is_replaced_while_its_place_is_named() -> None:
    places, _ = of("algo-1")
    places.places({"a": 2})
    assert places.may_replace("algo-1")
    places.replaced("algo-1", "algo-2")
    assert (places.place_of("algo-1"), places.place_of("algo-2")) == (None, "a")
    assert not places.may_replace("algo-1")


def test_other_slots_are_told_and_pipe_mode_uses_as_many_as_read() -> None:
    places, moves = of("algo-1", readers=2)
    places.places({"a": 4})
    places.places({"a": 3})
    told = [text for (text, *more) in moves.taken() if not more]
    assert "a has 4 slots, but the job uses only 2" in str(told[0])
    assert "a (algo-1) has 3 slots now, but the job keeps using 2" in str(told[1])


def test_a_source_that_does_not_decide_only_says_what_there_is() -> None:
    places, moves = of("algo-1", decides=False)
    assert places.known and not places.awaits("algo-1") and places.supply is None
    places.places({"a": None, "b": 1})
    places.problem("line 2")
    places.hopeless("line 2")
    assert places.supply == ("a", "b") and places.may_replace("algo-1")
    assert moves.taken() == [("the board: line 2",), ("none", "line 2")]
