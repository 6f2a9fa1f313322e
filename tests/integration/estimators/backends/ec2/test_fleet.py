"""A job's instances against the API: waited for, watched, replaced, ended. Nothing boots here."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from ec2_server import Ec2Server
from waiting import until

from container.system.loop import Loop
from estimators.backends.ec2 import requests
from estimators.backends.ec2.api import Ec2Api, Instance
from estimators.backends.ec2.fleet import Ec2Fleet, Events
from estimators.backends.ec2.options import Ec2Options

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

    def __init__(self, loop: Loop, ec2: Ec2Server, api: Ec2Api, **more: Any) -> None:
        self.loop = loop
        self.said: list[str] = []
        self.gone: dict[str, str] = {}
        self.stale: list[str] = []
        self.limits: list[str] = []
        self.found: dict[str, Instance] = {}
        self.failed: dict[str, str] = {}
        self.api = api
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
            api=lambda: api,
            make=lambda api: api.make(
                fleet="fleet-1", tags=TAGS, options=options, type_=TYPE, public_key=KEY, user_data="#cloud-config\n{}"
            ),
            fleet="fleet-1",
            tags=TAGS,
            options=dataclasses.replace(options, **values.pop("options", {})),
            types=(TYPE,),
            events=Events(
                say=self.said.append,
                gone=self.gone.__setitem__,
                stale=self.stale.append,
                limit=self.limits.append,
                cost=lambda cost: None,
            ),
            **values,
        )

    def want(self, *hosts: str, ready: bool = True) -> None:
        for host in hosts:

            def found(one: Instance, host: str = host) -> None:
                self.found[host] = one
                if ready:
                    self.fleet.ready(host)

            self.fleet.want(host, found, lambda text, host=host: self.failed.__setitem__(host, text))  # type: ignore[misc]

    def until(self, condition: Callable[[], object]) -> None:
        def look() -> None:
            self.loop.call_later(0.05, look)

        look()
        until(condition, between=self.loop.run_once, say=lambda: (self.said, self.failed, self.gone))


Make = Callable[..., Watched]


@pytest.fixture
def watch(loop: Loop, ec2: Ec2Server, the_api: Ec2Api) -> Any:
    made: list[Watched] = []

    def make(**more: Any) -> Watched:
        made.append(Watched(loop, ec2, the_api, **more))
        return made[-1]

    yield make
    for one in made:
        one.fleet.close()


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
        "algo-1": "EC2 has taken it back",
        "algo-2": "it has ended (Client.InstanceInitiatedShutdown)",
    }


def test_a_replacement_comes_to_the_others_of_its_gang(ec2: Ec2Server, watch: Make) -> None:
    one = watch()
    one.want("algo-1", "algo-2")
    one.until(lambda: len(one.found) == 2)
    zone = one.found["algo-1"].zone
    one.fleet.drop("algo-2")
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


def test_instances_that_cannot_be_used_are_replaced_a_few_times(ec2: Ec2Server, watch: Make) -> None:
    one = watch()
    one.want("algo-1", ready=False)
    for _ in range(3):
        one.until(lambda: "algo-1" in one.found)
        instance = one.found.pop("algo-1").id
        one.fleet.bad("algo-1", "i-another", "it is not meant")
        one.fleet.bad("algo-1", instance, "it never answers")
    one.until(lambda: one.failed)
    assert one.failed["algo-1"].count("it never answers") == 3 and "not meant" not in one.failed["algo-1"]
    one.until(lambda: not ec2.running())


def test_in_its_first_hour_a_host_with_notice_is_left_for_ec2_to_end(ec2: Ec2Server, watch: Make) -> None:
    one = watch()
    one.want("algo-1", "algo-2")
    one.until(lambda: len(one.found) == 2)
    one.fleet.notice("algo-1")
    assert one.fleet.drop("algo-1") is True
    assert one.fleet.drop("algo-2") is False
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
