"""What a fleet does with EC2's answers: waits, launches, ends and costs, on a clock that the test moves."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError
from botocore.parsers import ResponseParserError
from values import ProviderQueue, VirtualLoop, provided, spec_of

from container.contract.strategies import MPI, Distribution, ElasticHorovod
from estimators.backends.ec2.fleet import Ec2Fleet, InstanceSlot
from estimators.backends.ec2.options import Ec2Options
from estimators.backends.ec2.prices import Prices
from estimators.backends.ec2.requests import FleetAnswer, Instance, Refusal
from estimators.backends.events import LimitMet, ValuesNoted
from estimators.backends.hosts.provider import HostError
from estimators.job.errors import ConfigurationError

NONE = FleetAnswer(refusals=(Refusal(code="InsufficientInstanceCapacity", text="", pool="c5.large in a"),))
FAILED = ClientError({"Error": {"Code": "InternalError", "Message": "It broke."}}, "CreateFleet")


class Api:
    """EC2, as the test says.

    Attributes:
        answers: The next answers to a request; by default it is fulfilled.
        lost: How many answers to requests that were fulfilled are lost.
        meanwhile: What happens during each request.
        asked: The requests so far.
        tokens: How often each token was sent.
        instances: The instances that there are.
        fails: Operation -> what it raises.
        known: The prices.
    """

    def __init__(self) -> None:
        self.answers: list[FleetAnswer | ClientError] = []
        self.lost = 0
        self.meanwhile: Callable[[], object] = lambda: None
        self.asked: list[dict[str, Any]] = []
        self.tokens: Counter[str] = Counter()
        self.instances: dict[str, Instance] = {}
        self.fails: dict[str, Exception] = {}
        self.known: Prices = {("c5.large", ""): [(0.0, 0.1)], ("c5.large", "a"): [(0.0, 0.04)]}
        self._fulfilled: dict[str, FleetAnswer] = {}

    def attempt(self, operation: str) -> None:
        """Fail if the test says so."""
        if operation in self.fails:
            raise self.fails[operation]

    def launch(self, request: dict[str, Any], token: str) -> FleetAnswer:
        self.attempt("launch")
        self.asked.append(request)
        self.tokens[token] += 1
        self.meanwhile()
        if self.answers:
            answer = self.answers.pop(0)
            if isinstance(answer, ClientError):
                raise answer
            return answer
        if token not in self._fulfilled:
            count = request["TargetCapacitySpecification"]["TotalTargetCapacity"]
            self._fulfilled[token] = FleetAnswer(launched=tuple(self.add() for _ in range(count)))
        if self.lost:
            self.lost -= 1
            raise FAILED
        return self._fulfilled[token]

    def add(self) -> str:
        """Launch an instance."""
        name = f"i-{len(self.instances) + 1}"
        kind = {"type": "c5.large", "zone": "a", "spot": True, "private_address": "10.0.0.1"}
        self.instances[name] = Instance(id=name, state="running", launched=time.time(), **kind)
        return name

    def describe(self, fleet: str) -> list[Instance]:
        self.attempt("describe")
        return list(self.instances.values())

    def terminate(self, ids: list[str]) -> None:
        if ids:
            self.attempt("terminate")
        for one in ids:
            self.end(one, "Client.UserInitiatedShutdown")

    def end(self, name: str, reason: str) -> None:
        known = vars(self.instances[name])
        self.instances[name] = Instance(**{**known, "state": "terminated", "reason": reason})

    def prices(self, types: tuple[str, ...], **more: Any) -> Prices:
        self.attempt("prices")
        return self.known

    @property
    def running(self) -> list[str]:
        return [one.id for one in self.instances.values() if not one.gone]


class AtOnce:
    """Does in the loop what would be done in a thread."""

    async def call(self, work: Any) -> Any:
        await asyncio.sleep(0)
        return work()


class Fleet(Ec2Fleet):
    """A fleet whose requests are answered at once."""

    api: Api

    async def _prepare(self) -> Any:
        self.api.attempt("prepare")
        self._places = (("a", "subnet-a"), ("b", "subnet-b"))
        return self.api

    _background = AtOnce()  # type: ignore[assignment]


class World:
    """A fleet, and who waits for instances of it."""

    def __init__(self, strategy: Distribution | None = None, **options: Any) -> None:
        self.loop = VirtualLoop()
        self.events = ProviderQueue()
        spec = spec_of(strategy or MPI(), instance_type="ec2.c5.large", spot=True)
        self.fleet = Fleet(provided(self.loop, spec, self.events), Ec2Options(**options))
        self.api = self.fleet.api = Api()
        self.failed: dict[str, str] = {}

    @property
    def limits(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, LimitMet)]

    @property
    def noted(self) -> list[Any]:
        return [event.values for event in self.events if isinstance(event, ValuesNoted)]

    def want(self, *hosts: str) -> list[InstanceSlot]:
        """Have instances launched for hosts."""
        slots = [self.fleet.want() for _ in hosts]
        for host, slot in zip(hosts, slots, strict=True):
            self.loop.start(self._boot(host, slot))
        self.loop.advance()
        return slots

    async def _boot(self, host: str, slot: InstanceSlot) -> None:
        try:
            await slot.boot()
        except HostError as error:
            self.failed[host] = str(error)

    def close(self) -> None:
        self.fleet.close()
        self.loop.close()


NewWorld = Callable[..., World]


@pytest.fixture
def new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NewWorld]:
    """Makes a fleet."""
    monkeypatch.setenv("FLEETFIT_HOME", str(tmp_path))
    made: list[World] = []

    def make(strategy: Distribution | None = None, **options: Any) -> World:
        made.append(World(strategy, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def world(new: NewWorld) -> World:
    return new()


def test_hosts_that_want_instances_at_once_are_asked_for_together(world: World) -> None:
    slots = world.want("algo-1", "algo-2")
    assert len(world.api.asked) == 1 and [slot.id for slot in slots] == ["i-1", "i-2"]
    assert all(slot.runs for slot in slots)


def test_capacity_that_comes_later_is_taken(world: World) -> None:
    world.api.answers = [NONE, NONE]
    slots = world.want("algo-1", "algo-2")
    reason = "EC2 has no capacity (c5.large in a: InsufficientInstanceCapacity); trying again"
    assert world.events.waits[-1].startswith(reason)
    world.loop.advance(30.0)
    assert len(world.api.asked) == 3 and all(slot.runs for slot in slots)


def test_hosts_that_were_not_launched_with_the_others_are_asked_for_at_once(new: NewWorld) -> None:
    world = new(ElasticHorovod())
    world.api.answers = [FleetAnswer(launched=(world.api.add(),), refusals=NONE.refusals)]
    slots = world.want("algo-1", "algo-2")
    wanted = [request["TargetCapacitySpecification"]["TotalTargetCapacity"] for request in world.api.asked]
    assert wanted == [2, 1] and all(slot.runs for slot in slots)


def test_what_was_launched_counts_in_the_request_for_the_others(new: NewWorld) -> None:
    world = new(on_demand_base=1, max_price_per_hour=1.0)
    name = world.api.add()
    world.api.instances[name].zone, world.api.instances[name].spot = "b", False
    world.api.known = {("c5.large", ""): [(0.0, 0.4)], ("c5.large", "b"): [(0.0, 0.1)]}
    world.api.answers = [FleetAnswer(launched=(name,), refusals=NONE.refusals)]
    world.want("algo-1", "algo-2", "algo-3")
    world.loop.advance(1.0)
    request = world.api.asked[-1]
    assert request["TargetCapacitySpecification"]["SpotTargetCapacity"] == 2
    assert request["SpotOptions"]["MaxTotalPrice"] == "0.6000"
    [pool] = request["LaunchTemplateConfigs"][0]["Overrides"]
    assert pool["SubnetId"] == "subnet-b"


@pytest.mark.parametrize(("strategy", "waits"), [(MPI(), False), (ElasticHorovod(), True)])
def test_without_capacity_a_gang_fails_and_others_that_train_wait(
    strategy: Distribution, waits: bool, new: NewWorld
) -> None:
    world = new(strategy, capacity_timeout=60.0)
    world.want("algo-1")
    world.api.answers = [NONE] * 20
    world.want("algo-2")
    world.loop.advance(300.0)
    assert ("algo-2" not in world.failed) is waits
    if not waits:
        assert world.failed["algo-2"].startswith("EC2 had no capacity within 60 s")


def test_a_shortage_that_does_not_pass_fails_all_at_once(world: World) -> None:
    world.api.answers = [FleetAnswer(refusals=(Refusal(code="VcpuLimitExceeded", text="No."),))]
    world.want("algo-1", "algo-2")
    assert set(world.failed) == {"algo-1", "algo-2"} and "Service Quotas" in world.failed["algo-1"]


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("Server.SpotInstanceTermination", "EC2 has taken the instance back"),
        ("Client.InstanceInitiatedShutdown", "it has ended (Client.InstanceInitiatedShutdown)"),
    ],
)
def test_an_instance_that_is_gone_is_told_with_the_reason(reason: str, said: str, world: World) -> None:
    [slot] = world.want("algo-1")
    world.api.end("i-1", reason)
    world.loop.advance(11.0)
    assert str(slot.over.result()) == said


def test_one_that_ec2_does_not_list_is_waited_for_a_minute(world: World) -> None:
    world.api.answers = [FleetAnswer(launched=("i-9",))]
    [slot] = world.want("algo-1")
    world.loop.advance(50.0)
    assert slot.booting
    world.loop.advance(15.0)
    assert str(slot.over.result()) == "EC2 no longer lists the instance"


def test_a_replacement_comes_to_the_others_of_its_gang(world: World) -> None:
    _, slot = world.want("algo-1", "algo-2")
    world.fleet.drop(slot)
    world.loop.advance(1.0)
    assert world.api.running == ["i-1"]
    world.want("algo-2")
    [pool] = world.api.asked[-1]["LaunchTemplateConfigs"][0]["Overrides"]
    assert pool["SubnetId"] == "subnet-a"


@pytest.mark.parametrize(
    "error", [EndpointConnectionError(endpoint_url="ec2"), ResponseParserError("no element found"), KeyError("State")]
)
def test_an_instance_that_nobody_has_is_ended_also_after_ec2_was_away(error: Exception, world: World) -> None:
    world.want("algo-1")
    world.api.fails = {"describe": error, "prices": error}
    world.api.add()
    world.loop.advance(400.0)
    assert world.api.running == ["i-1", "i-2"]
    world.api.fails.clear()
    world.loop.advance(11.0)
    assert world.api.running == ["i-1"]


def test_a_host_that_is_not_needed_any_more_while_it_is_asked_for_keeps_nothing(world: World) -> None:
    slots = [world.fleet.want() for _ in range(2)]
    world.loop.call_soon(lambda: world.loop.call_soon(lambda: world.fleet.drop(slots[1]) and None))
    world.loop.advance(1.0)
    assert world.api.asked[0]["TargetCapacitySpecification"]["TotalTargetCapacity"] == 2
    assert world.api.running == ["i-1"]


def test_a_host_that_is_withdrawn_is_not_asked_for_in_the_next_request(new: NewWorld) -> None:
    world = new(on_demand_fallback=True)
    first, second = (world.fleet.want() for _ in range(2))
    world.api.answers = [NONE]
    world.api.meanwhile = lambda: second in world.fleet._waiting and world.fleet.drop(second)
    world.loop.advance(1.0)
    wanted = [request["TargetCapacitySpecification"] for request in world.api.asked]
    assert [capacity["TotalTargetCapacity"] for capacity in wanted] == [2, 1]
    assert wanted[1]["SpotTargetCapacity"] == 1  # EC2 may have spot capacity for one host
    assert first.runs and world.api.running == ["i-1"]


@pytest.mark.parametrize("launched", [True, False])
def test_a_request_that_fails_is_sent_again_and_says_nothing_of_capacity(launched: bool, new: NewWorld) -> None:
    world = new(on_demand_fallback=True)
    world.api.lost = 2 if launched else 0
    world.api.answers = [] if launched else [FAILED] * 2
    [slot] = world.want("algo-1")
    assert world.events.waits[-1].startswith("a request to EC2 failed (InternalError); trying again in ")
    world.loop.advance(30.0)
    assert list(world.api.tokens.values()) == [3] and world.api.asked[1:] == world.api.asked[:-1]
    assert slot.runs and slot.id == "i-1" and world.api.running == ["i-1"]


def test_an_instance_that_nobody_needs_is_ended_also_while_requests_fail(world: World) -> None:
    first, _ = world.want("algo-1", "algo-2")
    world.api.lost = 100
    world.want("algo-3")
    world.fleet.drop(first)
    world.loop.advance(15.0)
    assert world.api.running == ["i-2", "i-3"]  # the third may be named by an answer yet


def test_what_a_failed_request_has_launched_is_ended_when_it_is_given_up(new: NewWorld) -> None:
    world = new(capacity_timeout=60.0)
    world.api.lost = 100
    world.want("algo-1")
    world.loop.advance(300.0)
    assert world.failed == {"algo-1": "requests to EC2 failed for 60 s. InternalError: It broke"}
    assert list(world.api.instances) == ["i-1"] and world.api.running == []


@pytest.mark.parametrize("operation", ["prepare", "launch"])
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (KeyError("Instances"), "KeyError: 'Instances'"),
        (ConfigurationError("there is no image: name one."), "there is no image: name one"),
    ],
)
def test_whatever_a_call_raises_is_the_hosts_failure(operation: str, error: Exception, said: str, world: World) -> None:
    world.api.fails[operation] = error
    world.want("algo-1", "algo-2")
    assert world.failed == {"algo-1": said, "algo-2": said}


def test_in_its_first_hour_a_host_with_notice_is_left_for_ec2_to_end(world: World) -> None:
    first, second = world.want("algo-1", "algo-2")
    first.noticed = True
    assert world.fleet.drop(first) and not world.fleet.drop(second)
    world.loop.advance(11.0)
    assert world.api.running == ["i-1"]
    world.api.end("i-1", "Server.SpotInstanceTermination")
    world.loop.advance(11.0)
    world.fleet.close()
    cost = world.noted[-1]["cost"]
    assert cost["complete"] and cost["total"] == pytest.approx(0.04 / 60)  # the other one's least minute


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"budget": 1e-9}, "its cost of $0.00 has reached the budget of $0.00."),
        ({"max_price_per_hour": 0.01}, "its hosts cost $0.04 an hour, and max_price_per_hour is $0.01."),
    ],
)
def test_what_costs_too_much_is_told_once(options: dict[str, float], said: str, new: NewWorld) -> None:
    world = new(**options)
    world.want("algo-1")
    world.loop.advance(60.0)
    assert world.limits == [f"The job was stopped: {said}"]


def test_limits_count_also_while_instances_cannot_be_terminated(new: NewWorld) -> None:
    world = new(budget=1e-9)
    world.api.add()  # nobody has it
    world.api.fails["terminate"] = EndpointConnectionError(endpoint_url="ec2")
    world.want("algo-1")
    world.loop.advance(60.0)
    assert world.api.running == ["i-1", "i-2"]
    assert world.limits == ["The job was stopped: its cost of $0.00 has reached the budget of $0.00."]


def test_limits_count_also_while_prices_cannot_be_asked(new: NewWorld) -> None:
    world = new(max_price_per_hour=0.05)
    world.want("algo-1")
    world.api.fails["prices"] = KeyError("terms")
    world.loop.advance(400.0)
    assert world.limits == []
    world.want("algo-2")
    world.loop.advance(11.0)
    assert world.limits == ["The job was stopped: its hosts cost $0.08 an hour, and max_price_per_hour is $0.05."]


def test_prices_stay_known_when_ec2_does_not_say_them_again(new: NewWorld) -> None:
    world = new(budget=100.0)
    world.want("algo-1")
    world.api.known = {}
    world.loop.advance(700.0)
    assert world.limits == []
    world.fleet.close()
    cost = world.noted[-1]["cost"]
    assert cost["complete"] and cost["total"] == pytest.approx(0.04 / 60, rel=0.1)
