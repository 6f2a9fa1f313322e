"""Hosts that a cluster's workers start: what is asked of the program and what follows from its events, on values."""

from __future__ import annotations

import asyncio
import base64
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from values import ProviderQueue, Told, ValueHost, VirtualLoop, provided, spec_of

from container.contract.strategies import MPI, Distribution, ElasticHorovod
from estimators.backends.hosts import arriving
from estimators.backends.hosts.arrivals import Arrival, Expected
from estimators.backends.hosts.cluster_client import ProgramEnded
from estimators.backends.hosts.provider import Host, HostUnavailable
from estimators.backends.ray.provider import RayProvider
from estimators.backends.spark.provider import SparkProvider


class Program:
    """The program that talks to the cluster: it says what the test says."""

    started: list[Program]

    def __init__(self, loop: VirtualLoop, path: Path, **more: Any) -> None:
        self.code = {"name": "code", "fd": 3}
        self.sent: list[dict[str, Any]] = []
        self.over = False
        self._events: asyncio.Queue[dict[str, Any] | str] = asyncio.Queue()
        self.started.append(self)

    def send(self, **message: Any) -> None:
        self.sent.append(message)

    async def event(self) -> dict[str, Any]:
        event = await self._events.get()
        if isinstance(event, str):
            raise ProgramEnded(event)
        return event

    def close(self) -> None:
        self.over = True

    def say(self, event: str, **values: Any) -> None:
        """Say something."""
        self._events.put_nowait({"event": event, **values})

    def end(self, complaint: str) -> None:
        """End by itself."""
        self._events.put_nowait(complaint)

    def asked(self, operation: str) -> list[dict[str, Any]]:
        """What was asked of an operation."""
        return [message for message in self.sent if message["op"] == operation]

    def identity(self, host: str) -> str:
        """The newest identity of a host."""
        return str(
            [one["identity"] for asked in self.asked("acquire") for one in asked["hosts"] if one["name"] == host][-1]
        )

    def tell(self, host: str, event: str, **values: Any) -> None:
        """Say something of a host."""
        self.say(event, host=self.identity(host), **values)


class Door:
    """Where hosts arrive when the test says so."""

    port = 7000
    opened: list[Door]

    def __init__(self, loop: VirtualLoop, address: str) -> None:
        if address == "192.0.2.1":
            raise OSError(99, "Cannot assign requested address")
        self.expected: dict[str, Expected] = {}
        self.closed = False
        self.opened.append(self)

    def expect(self, host: Expected) -> None:
        self.expected[base64.b64encode(host.identity).decode()] = host

    def forget(self, host: Expected) -> None:
        self.expected.pop(base64.b64encode(host.identity).decode(), None)

    def close(self) -> None:
        self.closed = True

    def arrive(self, identity: str, address: str = "10.0.0.1") -> socket.socket:
        """A host arrives; return its end."""
        ours, theirs = socket.socketpair()
        self.expected[identity].arrival.set_result(Arrival(ours, address))
        return theirs


class Remote(ValueHost):
    """A host's agent, which answers at once."""

    def __init__(self, name: str, given: dict[str, Any]) -> None:
        super().__init__(name)
        self.given = given
        self.address = given["address"]

    @classmethod
    async def connect(cls, loop: VirtualLoop, name: str, read: int, write: int, **given: Any) -> Remote:
        os.close(read)
        return cls(name, given)

    async def break_off(self, reason: str = "the connection was closed") -> None:
        """Its connection ends."""
        self.lose(await self.given["source"].explain(reason))


class Scene:
    """A provider, the hosts that are asked for, and what came of it."""

    def __init__(self, provider: type[Any], strategy: Distribution | None, hosts: int, **options: Any) -> None:
        self.loop = VirtualLoop()
        self.events = ProviderQueue()
        spec = spec_of(strategy, instance_type="ray", hosts=hosts)
        self.provider = provider(provided(self.loop, spec, self.events, **options))
        self.hosts: dict[str, Remote] = {}
        self.refused: dict[str, str] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    def ask(self, *names: str) -> None:
        """Ask for hosts in one turn of the loop."""
        for name in names:
            self.tasks[name] = self.loop.start(self._acquire(name))
        self.loop.advance()

    async def _acquire(self, name: str) -> None:
        try:
            host: Host = await self.provider.acquire(name)
        except HostUnavailable as error:
            self.refused[name] = str(error)
        else:
            assert isinstance(host, Remote)
            self.hosts[name] = host

    @property
    def program(self) -> Program:
        return Program.started[-1]

    @property
    def door(self) -> Door:
        return Door.opened[-1]

    def join(self, **values: Any) -> None:
        """The program joins the cluster."""
        self.say("connected", address="10.0.0.254", started=False, **values)

    def start(self, *names: str) -> None:
        """Ray starts hosts, each on the node of its number."""
        for name in names:
            self.program.tell(name, "placed", node=f"node-of-{name}")
        for name in names:
            self.program.tell(name, "started", ip="10.0.0.1")
            self.door.arrive(self.program.identity(name)).close()
        self.loop.advance()

    def ask_joined(self, *names: str) -> None:
        """Ask for hosts of a cluster that is joined for them."""
        self.ask(*names)
        self.join()

    def have(self, *names: str) -> None:
        """Have such hosts started."""
        self.ask_joined(*names)
        self.start(*names)

    def say(self, event: str, **values: Any) -> None:
        self.program.say(event, **values)
        self.loop.advance()

    def break_off(self, name: str) -> None:
        """The connection to a host ends."""
        self.loop.start(self.hosts[name].break_off())
        self.loop.advance(1.0)

    def close(self) -> None:
        self.provider.close()
        self.loop.close()


NewScene = Callable[..., Scene]


@pytest.fixture
def new_scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[NewScene]:
    """Makes a provider whose program, door and agents are values."""
    monkeypatch.setattr(Program, "started", [], raising=False)
    monkeypatch.setattr(Door, "opened", [], raising=False)
    monkeypatch.setattr(arriving, "ClusterClient", Program)
    monkeypatch.setattr(arriving, "Arrivals", Door)
    monkeypatch.setattr(arriving, "RemoteHost", Remote)
    scenes: list[Scene] = []

    def make(
        provider: type[Any] = RayProvider, strategy: Distribution | None = None, hosts: int = 2, **options: Any
    ) -> Scene:
        scenes.append(Scene(provider, strategy, hosts, **options))
        return scenes[-1]

    yield make
    for scene in scenes:
        scene.close()


@pytest.fixture
def scene(new_scene: NewScene) -> Scene:
    return new_scene()


class TestAsking:
    def test_what_is_asked_for_in_one_turn_is_a_gang_and_is_asked_when_the_cluster_was_joined(
        self, scene: Scene
    ) -> None:
        scene.ask("algo-1", "algo-2")
        assert [message["op"] for message in scene.program.sent] == ["connect"]
        scene.join()
        [asked] = scene.program.asked("acquire")
        assert [host["name"] for host in asked["hosts"]] == ["algo-1", "algo-2"]
        assert (asked["address"], asked["port"]) == ("10.0.0.254", 7000)
        scene.ask("algo-3")
        assert len(scene.program.asked("acquire")) == 2 and len(Program.started) == 1

    def test_hosts_of_an_elastic_job_are_asked_for_one_by_one(self, new_scene: NewScene) -> None:
        scene = new_scene(strategy=ElasticHorovod(), follow_nodes=False)
        scene.ask_joined("algo-1", "algo-2")
        assert [len(asked["hosts"]) for asked in scene.program.asked("acquire")] == [1, 1]

    def test_a_host_is_there_when_it_was_started_and_has_arrived(self, scene: Scene) -> None:
        scene.have("algo-1", "algo-2")
        assert set(scene.hosts) == {"algo-1", "algo-2"}
        given = scene.hosts["algo-2"].given
        assert (given["address"], given["caller_address"]) == ("10.0.0.1", "10.0.0.254")
        assert given["root"] == "job-1/hosts/algo-2"

    @pytest.mark.parametrize("joined", [False, True])
    def test_a_host_that_is_not_needed_any_more_is_given_back(self, joined: bool, scene: Scene) -> None:
        scene.ask("algo-1", "algo-2")
        if joined:
            scene.join()
            theirs = scene.door.arrive(scene.program.identity("algo-1"))
        scene.tasks["algo-1"].cancel()
        scene.loop.advance()
        if joined:
            assert [one["host"] for one in scene.program.asked("release")] == [scene.program.identity("algo-1")]
            assert scene.program.identity("algo-1") not in scene.door.expected and not theirs.recv(1)
            theirs.close()
        else:
            scene.join()
            [asked] = scene.program.asked("acquire")
            assert [host["name"] for host in asked["hosts"]] == ["algo-2"] and not scene.program.asked("release")

    def test_a_host_that_is_asked_for_again_has_another_folder_and_identity(self, scene: Scene) -> None:
        scene.have("algo-1")
        first = scene.program.identity("algo-1")
        scene.provider.release(scene.hosts["algo-1"])
        assert scene.program.asked("release") == [{"op": "release", "host": first, "lost": False}]
        scene.ask("algo-1")
        scene.start("algo-1")
        assert scene.program.identity("algo-1") != first
        assert scene.hosts["algo-1"].given["root"] == "job-1.2/hosts/algo-1"


class TestFailing:
    def test_why_a_host_cannot_be_started_is_said_with_its_place(self, scene: Scene) -> None:
        scene.ask_joined("algo-1", "algo-2", "algo-3")
        scene.program.tell("algo-1", "failed", reason="no room")
        for name in ("algo-2", "algo-3"):
            scene.program.tell(name, "placed", node="0123456789abcdef")
        scene.program.tell("algo-2", "failed", reason="no Python")
        scene.program.tell("algo-3", "ended", reason="")
        scene.loop.advance()
        assert scene.refused == {
            "algo-1": "no room",
            "algo-2": "node 0123456789ab: no Python",
            "algo-3": "node 0123456789ab: its worker on Ray has ended",
        }
        assert len(scene.program.asked("release")) == 3

    def test_a_cluster_that_cannot_be_joined_is_the_reason_for_all(self, scene: Scene) -> None:
        scene.ask("algo-1", "algo-2")
        scene.say("refused", reason="there is no Ray")
        assert scene.refused == dict.fromkeys(["algo-1", "algo-2"], "there is no Ray")
        assert scene.program.over
        scene.ask("algo-1")
        assert len(Program.started) == 2, "another program is started"

    def test_so_is_an_address_that_is_not_this_machines(self, new_scene: NewScene) -> None:
        scene = new_scene(caller_address="192.0.2.1")
        scene.ask_joined("algo-1")
        assert "cannot listen at 192.0.2.1, its address for the hosts (Cannot assign" in scene.refused["algo-1"]

    def test_a_program_that_ends_fails_who_waits_and_nobody_else(self, scene: Scene) -> None:
        scene.have("algo-1")
        scene.ask("algo-2")
        scene.program.end("it was killed")
        scene.loop.advance()
        reason = "the process that talks to Ray has ended unexpectedly: it was killed"
        assert scene.refused == {"algo-2": reason} and scene.door.closed
        scene.break_off("algo-1")
        assert scene.hosts["algo-1"].reason == "the connection was closed (node node-of-algo)"

    def test_what_lacks_is_shown(self, scene: Scene) -> None:
        scene.ask_joined("algo-1")
        scene.say("pending", reason="Ray has 1 of 2 nodes")
        assert scene.events.waits == ["Ray has 1 of 2 nodes."]

    def test_mpi_hosts_share_all_machines_or_none(self, new_scene: NewScene) -> None:
        scene = new_scene(strategy=MPI(), hosts=3)
        scene.ask_joined("algo-1", "algo-2", "algo-3")
        for name, node in (("algo-1", "a"), ("algo-2", "a"), ("algo-3", "b")):
            scene.program.tell(name, "placed", node=node)
        scene.loop.advance()
        assert "Ray has put the 3 hosts on 2 machines. MPI needs one" in scene.refused["algo-1"]
        assert len(scene.refused) == len(scene.program.asked("release")) == 3


class TestLoss:
    @pytest.mark.parametrize(
        ("after", "why"), [(0.05, "its worker was killed"), (0.5, "node node-of-algo"), (None, "node node-of-algo")]
    )
    def test_the_clusters_reason_is_waited_for_a_moment(self, after: float | None, why: str, scene: Scene) -> None:
        scene.have("algo-1")
        scene.loop.start(scene.hosts["algo-1"].break_off())
        if after is not None:
            tell = scene.program.tell
            scene.loop.call_later(after, lambda: tell("algo-1", "ended", reason="its worker was killed"))
        scene.loop.advance(1.0)
        assert scene.hosts["algo-1"].reason == f"the connection was closed ({why})"
        scene.provider.release(scene.hosts["algo-1"])
        assert scene.program.asked("release")[0]["lost"] is True

    def test_a_notice_of_ray_is_the_hosts(self, scene: Scene) -> None:
        scene.have("algo-1")
        scene.program.tell("algo-1", "notice", seconds=30.0)
        assert scene.loop.run(scene.hosts["algo-1"].until_noticed()) == 29.0


class TestSpark:
    def test_hosts_of_a_stage_begin_when_all_have_connected_and_are_lost_together(self, new_scene: NewScene) -> None:
        scene = new_scene(SparkProvider)
        scene.ask_joined("algo-1", "algo-2")
        scene.door.arrive(scene.program.identity("algo-1"), "10.0.0.1").close()
        scene.loop.advance()
        assert not scene.hosts
        scene.door.arrive(scene.program.identity("algo-2"), "10.0.0.2").close()
        scene.loop.advance()
        assert [scene.hosts[name].address for name in ("algo-1", "algo-2")] == ["10.0.0.1", "10.0.0.2"]
        order: list[str] = []

        async def watch(host: Remote) -> None:
            await host.until_lost()
            order.append(host.name)

        for host in scene.hosts.values():
            scene.loop.start(watch(host))
        scene.loop.advance()
        scene.break_off("algo-2")
        assert order == ["algo-2", "algo-1"], "the job is told of the first loss first"
        reason = "Spark ended the barrier stage of all hosts because algo-2 was lost: the connection was closed"
        assert scene.hosts["algo-1"].reason == reason


def nodes(*names: str) -> dict[str, int | None]:
    """What is told of nodes, whose room Ray knows."""
    return dict.fromkeys(names)


class TestNodes:
    @pytest.fixture
    def scene(self, new_scene: NewScene) -> Scene:
        return new_scene(strategy=ElasticHorovod(max_hosts=4))

    @pytest.fixture
    def told(self, scene: Scene) -> list[Any]:
        """What an elastic job is told of the nodes."""
        told = Told()
        scene.provider.membership().start(told)
        scene.loop.advance()
        return told.said

    @pytest.mark.parametrize("first", ["locate", "acquire"])
    def test_a_host_is_asked_for_at_the_node_that_is_said(self, first: str, scene: Scene) -> None:
        if first == "locate":
            scene.provider.locate("algo-1", "node-1")
        scene.ask("algo-1")
        if first == "acquire":
            scene.provider.locate("algo-1", "node-1")
            scene.loop.advance()
        scene.join()
        assert [asked["node"] for asked in scene.program.asked("acquire")] == ["node-1"]

    def test_the_drivers_lists_are_passed_on_until_it_is_closed(self, scene: Scene) -> None:
        told = Told()
        source = scene.provider.membership()
        source.start(told)
        scene.loop.advance()
        scene.join()
        assert scene.program.asked("follow") == [{"op": "follow", "most": 4, "bundle": {"CPU": 1.0}, "labels": {}}]
        scene.program.say("places", nodes=["a", "b"])
        scene.say("places", nodes=["a", "b", "c"])
        assert told.said == [nodes("a", "b"), nodes("a", "b", "c")]
        source.close()
        scene.say("places", nodes=[])
        assert told.said[-1] == nodes("a", "b", "c")

    def test_the_node_of_a_lost_host_is_taken_for_gone(self, scene: Scene, told: list[Any]) -> None:
        scene.provider.locate("algo-1", "node-of-algo-1")
        scene.have("algo-1")
        scene.say("places", nodes=["node-of-algo-1", "b"])
        scene.break_off("algo-1")
        assert told == [nodes("node-of-algo-1", "b"), nodes("b")]

    def test_another_driver_is_started_where_one_has_ended_and_after_ever_longer_pauses(
        self, scene: Scene, told: list[Any]
    ) -> None:
        scene.join()
        scene.say("places", nodes=["a"])
        for pause in (1.0, 2.0):
            scene.program.end("")
            scene.loop.advance(pause - 0.1)
            count = len(Program.started)
            scene.loop.advance(0.2)
            assert len(Program.started) == count + 1
        assert told == [nodes("a"), "the process that talks to Ray has ended unexpectedly"]
        scene.join()
        scene.say("places", nodes=["b"])
        assert told[-1] == nodes("b")

    def test_a_cluster_that_is_not_there_at_first_is_hopeless(self, scene: Scene, told: list[Any]) -> None:
        scene.say("refused", reason="there is no Ray")
        assert told == ["there is no Ray", "hopeless: there is no Ray"]
