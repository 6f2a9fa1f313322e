"""What becomes of an instance that cannot be used, of one that goes, and of a host that is not needed any more."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from values import ProviderQueue, ValueHost, VirtualLoop, provided, spec_of

from estimators.backends.ec2.fleet import InstanceSlot, NoInstance
from estimators.backends.ec2.provider import Ec2Provider
from estimators.backends.ec2.requests import Instance
from estimators.backends.hosts.provider import Host, HostError, HostLost, HostUnavailable
from estimators.backends.ssh.provider import Reservation


class Fleet:
    """Instances that run when the test says so.

    Attributes:
        slots: What was asked for, the oldest first.
        dropped: What is not needed any more.
    """

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.slots: list[InstanceSlot] = []
        self.dropped: list[InstanceSlot] = []
        self.left = False
        self.alias = "fleetfit-1"

    def want(self) -> InstanceSlot:
        self.slots.append(InstanceSlot(self._loop.create_future(), self._loop.create_future()))
        self.slots[-1].id = f"i-{len(self.slots)}"
        return self.slots[-1]

    def boot(self, public_address: str = "203.0.113.1") -> None:
        """Let the newest instance run."""
        slot = self.slots[-1]
        kind = {"type": "c5.large", "zone": "a", "spot": False}
        addresses = {"private_address": "10.0.0.1", "public_address": public_address}
        slot.running.set_result(Instance(id=slot.id, state="running", launched=0.0, **kind, **addresses))

    def drop(self, slot: InstanceSlot) -> bool:
        self.dropped.append(slot)
        return self.left

    def close(self) -> None: ...


class Provider(Ec2Provider):
    """Starts hosts as the test says: a host on an instance, or why there is none."""

    starts: dict[str, Any]

    async def _start(self, name: str, reservation: Reservation) -> Host:  # type: ignore[override]
        found = await self.starts.setdefault(reservation.machine.name, self.loop.create_future())
        if isinstance(found, str):
            raise HostUnavailable(found)
        return ValueHost(name)


class World:
    """A provider for a job, and who waits for a host of it."""

    def __init__(self) -> None:
        self.loop = VirtualLoop()
        self.events = ProviderQueue()
        spec = spec_of(instance_type="ec2.c5.large", hosts=1)
        self.provider = Provider(provided(self.loop, spec, self.events, python="python3"))
        self.provider.starts = {}
        self.fleet = Fleet(self.loop)
        self.provider._fleet.close()
        self.provider._fleet = self.fleet  # type: ignore[assignment]

    def acquire(self) -> asyncio.Task[Any]:
        async def acquire() -> Any:
            try:
                return await self.provider.acquire("algo-1")
            except HostUnavailable as error:
                return str(error)

        task = self.loop.start(acquire())
        self.loop.advance()
        return task

    def boot(self, **more: Any) -> None:
        self.fleet.boot(**more)
        self.loop.advance()

    def start(self, found: Any = True) -> None:
        """Have the newest instance's agent started, or not."""
        self.provider.starts[self.fleet.slots[-1].id].set_result(found)
        self.loop.advance()

    def end(self, reason: HostError) -> None:
        """Have the newest instance end."""
        self.fleet.slots[-1].end(reason)
        self.loop.advance()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setenv("FLEETFIT_HOME", str(tmp_path))
    one = World()
    yield one
    one.provider.close()
    one.loop.close()


def test_an_instance_that_cannot_be_used_is_replaced_a_few_times(world: World) -> None:
    acquiring = world.acquire()
    world.boot()
    world.start("it never answers")
    assert world.events.waits == ["i-1 could not be used (it never answers). Requesting another instance"]
    world.end(HostLost("EC2 no longer lists the instance"))  # before it ran
    world.boot()
    world.start("no python")
    assert acquiring.result() == "i-1: it never answers; i-2: EC2 no longer lists the instance; i-3: no python"
    assert world.fleet.dropped == world.fleet.slots and len(world.fleet.slots) == 3


def test_one_that_goes_while_its_agent_is_started_is_replaced_with_ec2s_reason(world: World) -> None:
    acquiring = world.acquire()
    world.boot()
    world.end(HostLost("EC2 has taken the instance back"))
    assert "i-1 could not be used (EC2 has taken the instance back)" in world.events.waits[0]
    assert world.provider.starts["i-1"].cancelled()
    world.boot()
    world.start()
    assert isinstance(acquiring.result(), Host)


def test_without_capacity_the_reason_is_said_with_those_before(world: World) -> None:
    acquiring = world.acquire()
    world.boot()
    world.start("it never answers")
    world.end(NoInstance("EC2 had no capacity"))
    assert acquiring.result() == "i-1: it never answers; EC2 had no capacity"


def test_an_instance_without_the_address_is_not_replaced(world: World) -> None:
    acquiring = world.acquire()
    world.boot(public_address="")
    assert acquiring.result().startswith("i-1 has no public address. Name subnets that assign public addresses")
    assert world.fleet.dropped == world.fleet.slots


@pytest.mark.parametrize("boots", [False, True])
def test_a_host_that_is_not_needed_any_more_gives_its_instance_back(world: World, boots: bool) -> None:
    acquiring = world.acquire()
    if boots:
        world.boot()
    acquiring.cancel()
    world.loop.advance()
    assert acquiring.cancelled() and world.fleet.dropped == world.fleet.slots
    assert not any(start for start in world.provider.starts.values() if not start.done())


def test_a_host_whose_instance_is_gone_is_lost_until_it_is_released(world: World) -> None:
    acquiring = world.acquire()
    world.boot()
    world.start()
    host = acquiring.result()
    losing = world.loop.start(host.until_lost())
    world.end(HostLost("EC2 has taken the instance back"))
    assert losing.result() == "EC2 has taken the instance back"
    world.provider.release(host)
    acquiring = world.acquire()
    world.boot()
    world.start()
    world.provider.release(acquiring.result())
    world.end(HostLost("it has ended"))
    assert not acquiring.result()._loss.is_set()
    assert world.fleet.dropped == world.fleet.slots
