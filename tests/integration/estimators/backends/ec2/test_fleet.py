"""A job's instances against the API: waited for, watched, replaced, ended. Nothing boots here."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Callable
from typing import Any

import pytest
from ec2_server import Ec2Server

from container.system.asyncio_loop import AsyncioLoop
from estimators.backends.ec2 import requests
from estimators.backends.ec2.api import Ec2Api, Instance
from estimators.backends.ec2.fleet import Ec2Fleet, Slot
from estimators.backends.ec2.options import Ec2Options
from estimators.backends.hosts.provider import HostError

TYPE = "c5.large"
TAGS = requests.tags_of("job-1", "fleet-1", "ann@desk", {})
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAINwYokDaQXIvKvjJkv/fRh+Zjh/I4uRIyNtgmuar+GZz ann\n"


@pytest.fixture(scope="module")
def the_api(region: Ec2Server) -> Ec2Api:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in region.environment.items():
            patch.setenv(name, value)
        return Ec2Api()


class Watched:
    """A fleet, and what it has told."""

    def __init__(self, loop: AsyncioLoop, ec2: Ec2Server, api: Ec2Api, **more: Any) -> None:
        self.loop = loop
        self.said: list[str] = []
        self.slots: dict[str, Slot] = {}
        self.found: dict[str, Instance] = {}
        self.gone: dict[str, str] = {}
        self.failed: dict[str, str] = {}
        self.limits: list[str] = []
        values = {"spot": True, "together": True, "waits": False, **more}
        options = Ec2Options(
            subnets=tuple(ec2.subnets.values()),
            ami="/fleetfit/image",
            ssh_from=("203.0.113.7/32",),
            reach="private",
            on_demand_price=0.1,
            poll=0.2,
        )
        self.fleet = Ec2Fleet(
            self.loop,
            make=lambda: (
                api,
                api.make(
                    fleet="fleet-1",
                    tags=TAGS,
                    options=options,
                    type_=TYPE,
                    public_key=KEY,
                    user_data="#cloud-config\n{}",
                ),
            ),
            fleet="fleet-1",
            tags=TAGS,
            options=dataclasses.replace(options, **values.pop("options", {})),
            types=(TYPE,),
            say=self.said.append,
            limit=self.limits.append,
            note=lambda cost: None,
            **values,
        )

    def want(self, *hosts: str) -> None:
        async def follow(host: str) -> None:
            slot = self.slots[host] = self.fleet.want()
            try:
                self.found[host] = await slot.boot()
            except HostError as error:
                self.failed[host] = str(error)
                return
            slot.used = True
            self.gone[host] = await slot.until_gone()

        for host in hosts:
            self.loop.start(follow(host))

    def until(self, condition: Callable[[], object]) -> None:
        async def look() -> None:
            while not condition():
                await asyncio.sleep(0.05)

        try:
            self.loop.run(asyncio.wait_for(look(), 120))
        except asyncio.TimeoutError:
            raise AssertionError((self.said, self.failed, self.gone)) from None


Make = Callable[..., Watched]


@pytest.fixture
def watch(asyncio_loop: AsyncioLoop, ec2: Ec2Server, the_api: Ec2Api) -> Any:
    made: list[Watched] = []
    before = set(threading.enumerate())

    def make(**more: Any) -> Watched:
        made.append(Watched(asyncio_loop, ec2, the_api, **more))
        return made[-1]

    yield make
    for one in made:
        one.fleet.close()
    for thread in set(threading.enumerate()) - before:
        if thread.name.endswith("(body)"):  # what was asked of EC2 last
            thread.join()


def test_an_answer_that_is_lost_launches_nothing_twice(ec2: Ec2Server, watch: Make) -> None:
    ec2.lost_answers = 1
    one = watch()
    one.want("algo-1", "algo-2")
    one.until(lambda: len(one.found) == 2)
    assert len(ec2.running()) == 2 and ec2.count("CreateFleet") == 2
    assert len({form["ClientToken"] for name, form in ec2.asked if name == "CreateFleet"}) == 1


def test_capacity_that_comes_later_is_taken(ec2: Ec2Server, watch: Make) -> None:
    for zone in ec2.subnets:
        ec2.capacity[TYPE, zone] = 1
    one = watch()
    one.want("algo-1", "algo-2")
    one.until(lambda: any("EC2 has no capacity" in text for text in one.said))
    assert ec2.running() == []  # all of a gang or nothing
    ec2.capacity.clear()
    one.until(lambda: len(one.found) == 2)


def test_an_instance_that_is_gone_is_told_with_the_reason(ec2: Ec2Server, watch: Make) -> None:
    one = watch()
    one.want("algo-1", "algo-2")
    one.until(lambda: len(one.found) == 2)
    ec2.end(one.found["algo-1"].id, "Server.SpotInstanceTermination")
    ec2.end(one.found["algo-2"].id)
    one.until(lambda: len(one.gone) == 2)
    assert one.gone == {
        "algo-1": "EC2 has taken the instance back",
        "algo-2": "it has ended (Client.InstanceInitiatedShutdown)",
    }


def test_a_replacement_comes_to_the_others_of_its_gang(ec2: Ec2Server, watch: Make) -> None:
    one = watch()
    one.want("algo-1", "algo-2")
    one.until(lambda: len(one.found) == 2)
    zone = one.found["algo-1"].zone
    one.fleet.drop(one.slots["algo-2"])
    one.until(lambda: len(ec2.running()) == 1)
    one.want("algo-2")
    first = one.found.pop("algo-2")
    one.until(lambda: "algo-2" in one.found)
    assert one.found["algo-2"].zone == zone and one.found["algo-2"].id != first.id
    last = [form for name, form in ec2.asked if name == "CreateFleet"][-1]
    assert "LaunchTemplateConfigs.1.Overrides.2.SubnetId" not in last


def test_an_instance_that_nobody_has_is_ended(ec2: Ec2Server, watch: Make) -> None:
    one = watch()
    one.want("algo-1")
    one.until(lambda: len(one.found) == 1)
    client = ec2.client()
    tags = [{"ResourceType": "instance", "Tags": requests.tag_list(TAGS)}]
    client.run_instances(ImageId=ec2.image, MinCount=1, MaxCount=1, InstanceType=TYPE, TagSpecifications=tags)
    assert len(ec2.running()) == 2
    one.until(lambda: ec2.running() == [one.found["algo-1"].id])


def test_what_is_not_wanted_any_more_is_ended_also_while_it_is_asked_for(ec2: Ec2Server, watch: Make) -> None:
    one = watch()
    one.want("algo-1", "algo-2")
    one.until(lambda: len(one.slots) == 2)
    one.fleet.drop(one.slots["algo-2"])
    one.until(lambda: "algo-1" in one.found and ec2.running() == [one.found["algo-1"].id])
    one.fleet.drop(one.slots["algo-1"])
    one.until(lambda: not ec2.running())


def test_in_its_first_hour_a_host_with_notice_is_left_for_ec2_to_end(ec2: Ec2Server, watch: Make) -> None:
    one = watch()
    one.want("algo-1", "algo-2")
    one.until(lambda: len(one.found) == 2)
    one.slots["algo-1"].noticed = True
    assert one.fleet.drop(one.slots["algo-1"]) is True
    assert one.fleet.drop(one.slots["algo-2"]) is False
    one.until(lambda: ec2.running() == [one.found["algo-1"].id])
    ec2.end(one.found["algo-1"].id, "Server.SpotInstanceTermination")
    looks = ec2.count("DescribeInstances")
    one.until(lambda: ec2.count("DescribeInstances") > looks + 2)
    cost = one.fleet.cost()
    assert cost.complete and cost.total < 2e-7  # the other one's least minute, at moto's price


@pytest.mark.parametrize(
    ("options", "text"),
    [({"budget": 1e-9}, "the budget of $0.00"), ({"max_price_per_hour": 1e-9}, "and max_price_per_hour is")],
)
def test_what_costs_too_much_is_told_once(options: dict[str, float], text: str, watch: Make) -> None:
    one = watch(options=options)
    one.want("algo-1")
    one.until(lambda: one.limits)
    assert text in one.limits[0]


def test_what_waiting_does_not_help_fails_at_once(ec2: Ec2Server, watch: Make) -> None:
    ec2.refuse("CreateFleet", "VcpuLimitExceeded")
    one = watch()
    one.want("algo-1", "algo-2")
    one.until(lambda: len(one.failed) == 2)
    assert "Service Quotas" in one.failed["algo-1"]
    ec2.refuse("DescribeImages", "InvalidAMIID.NotFound")
    other = watch()
    other.want("algo-1")
    other.until(lambda: other.failed)
    assert "backend_options={'ami'" in other.failed["algo-1"]
