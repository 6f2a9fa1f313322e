"""Who has which rank where all workers start again, in a loop that the test moves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

import pytest
from moved import MovedLoop

from container.contract.strategies import ElasticTorchDistributed
from estimators.supervisor.elastic.members import Roster
from estimators.supervisor.elastic.policy import Limits
from estimators.supervisor.elastic.restarting import RestartingDriver, RestartPhase

ONE, TWO, THREE = "algo-1.0.0", "algo-2.0.0", "algo-3.0.0"
TIMEOUT = ElasticTorchDistributed().elastic_timeout


class World(MovedLoop):
    """The loop and the supervisor of one training."""

    def __init__(self, least: int = 1, restarts: int = 0, **strategy: Any) -> None:
        super().__init__()
        self.record = self  # the backend's
        self.name = "job-1"
        self.sharing: list[Coroutine[Any, Any, None]] = []
        self.told: list[dict[str, Any]] = []
        roster = Roster(["algo-1", "algo-2", "algo-3"], 1, restarts=True)
        for number, host in enumerate(roster.hosts.values()):
            host.address, host.ports = f"10.0.0.{number}", (7000, 7001)
        self.driver = RestartingDriver(
            self,  # type: ignore[arg-type]
            self,  # type: ignore[arg-type]
            self,  # type: ignore[arg-type]
            strategy=ElasticTorchDistributed(**strategy),
            limits=Limits(first=1, least=least, most=9),
            roster=roster,
            restarts=restarts,
        )
        assert self.after() == [("waiting", "")]

    def start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine up to where it shares what was saved."""
        coroutine.send(None)
        self.sharing.append(coroutine)

    async def share_checkpoints(self) -> None:
        await asyncio.sleep(0)  # until the test lets it go on

    def from_driver(self, message: dict[str, Any]) -> None:
        self.told.append(message)

    def after(self, seconds: float = 0.0) -> list[tuple[str, str]]:
        """Let time pass, and return what the driver says: an operation, and of which worker."""
        self.told.clear()
        self.advance(seconds)
        return [(message["op"], message.get("worker", "")) for message in self.told]

    def send(self, operation: str, worker: str = "", **values: Any) -> list[tuple[str, str]]:
        """Tell it something, and return what it says to that."""
        self.driver.send({"op": operation, "worker": worker, **values})
        return self.after()

    def share(self) -> list[tuple[str, str]]:
        """All hosts have what was saved."""
        with contextlib.suppress(StopIteration):
            self.sharing.pop().send(None)
        return self.after()

    def ranks(self) -> dict[str, dict[str, str]]:
        return {message["worker"]: message["environment"] for message in self.told if message["op"] == "start"}

    def wants(self, *workers: str) -> list[tuple[str, str]]:
        return self.send("workers", workers=list(workers))


def begun(*workers: str, **more: Any) -> World:
    world = World(**more)
    assert world.wants(*workers) == [("enough", ""), *(("start", worker) for worker in workers), ("membership", "")]
    return world


def test_ranks_are_host_by_host_and_the_store_is_on_the_first_host_of_each_membership() -> None:
    world = World(restarts=4)
    world.wants(ONE, TWO, "algo-1.1.0")
    ranks = world.ranks()
    assert [(ranks[name]["RANK"], ranks[name]["LOCAL_RANK"]) for name in (ONE, "algo-1.1.0", TWO)] == [
        ("0", "0"), ("1", "1"), ("2", "0"),
    ]  # fmt: skip
    assert {(r["MASTER_ADDR"], r["MASTER_PORT"]) for r in ranks.values()} == {("10.0.0.0", "7000")}
    assert {r["TORCHELASTIC_RESTART_COUNT"] for r in ranks.values()} == {"4"}
    # The first host is lost, with the store: the others end, and meet on the next one.
    said = [*world.send("ended", ONE), *world.send("ended", "algo-1.1.0")]
    assert said == [("restart", "algo-1.1.0"), ("restart", TWO)]
    assert world.send("ready", TWO) == []
    assert world.share() == [("start", TWO), ("membership", "")]
    assert world.ranks()[TWO].items() >= {
        "RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "7001",
        "TORCHELASTIC_RESTART_COUNT": "5",
    }.items()  # fmt: skip


def test_a_growth_waits_until_all_have_ended_with_time_to_save() -> None:
    world = begun(ONE, TWO)
    assert world.wants(ONE, TWO, THREE) == [("restart", ONE), ("restart", TWO)]
    assert {message["grace"] for message in world.told} == {30.0}
    assert world.send("ready", TWO) == [] and not world.sharing
    world.send("ready", ONE)
    assert world.share() == [("start", ONE), ("start", TWO), ("start", THREE), ("membership", "")]


def test_a_loss_during_a_planned_change_hurries_the_others() -> None:
    world = begun(ONE, TWO, THREE)
    assert world.wants(ONE, TWO) == [("restart", ONE), ("restart", TWO), ("end", THREE)]
    assert world.send("ended", ONE) == [("restart", TWO)] and world.told[0]["grace"] < 1
    world.send("ended", THREE)
    world.send("ready", TWO)
    assert world.share() == [("start", TWO), ("membership", "")]


def test_the_scripts_own_failures_are_counted_and_losses_are_not() -> None:
    world = begun(ONE, TWO, max_restarts=1)
    for _ in range(2):
        # What says that it lost its peer does not count, if somebody was lost.
        assert world.send("failed", TWO, consequence=True) == []
        assert world.send("ended", ONE) == [("restart", TWO)]
        world.send("ready", TWO)
        assert world.share()[-1] == ("membership", "")
        world.wants(TWO, ONE)
        world.send("ready", TWO)
        world.share()
    assert world.send("failed", TWO, consequence=False) == [("restart", TWO), ("restart", ONE)]
    world.send("ready", TWO)
    world.send("ready", ONE)
    world.share()
    assert world.driver._phase is RestartPhase.RUNNING
    assert world.send("failed", ONE, consequence=False) == [("finished", "")]
    assert world.told[0]["error"] == "the script has failed again after 1 restarts (max_restarts=1)"
    assert world.told[0]["blamed"]


def test_who_has_caused_a_failure_has_time_to_fail_too() -> None:
    """It closes its connections, which the others notice, before its own failure is told."""
    world = begun(ONE, TWO, THREE, max_restarts=0)
    assert world.send("failed", ONE, consequence=True) == []
    assert world.after(1.9) == []
    assert world.send("failed", TWO, consequence=False) == [("finished", "")] and world.told[0]["blamed"]


def test_failures_of_which_nobody_is_the_cause_restart_all() -> None:
    world = begun(ONE, TWO, max_restarts=1)
    assert world.send("failed", ONE, consequence=True) == []
    assert world.after(2.0) == [("restart", ONE), ("restart", TWO)]
    world = begun(ONE, TWO, max_restarts=1)
    assert world.send("failed", ONE, consequence=True) == []
    assert world.send("failed", TWO, consequence=True) == [("restart", ONE), ("restart", TWO)]
    assert world.after(2.0) == []
    world = begun(ONE, TWO, max_restarts=1)
    assert world.send("failed", ONE, consequence=True) == []
    assert world.send("done", TWO) == [("restart", ONE), ("restart", TWO)]


def test_a_planned_change_after_a_failure_waits_no_longer_than_a_loss() -> None:
    world = begun(ONE, TWO, THREE)
    assert world.send("failed", ONE, consequence=True) == []
    assert world.wants(ONE, TWO) == [("restart", ONE), ("restart", TWO), ("end", THREE)]
    assert {message["grace"] for message in world.told[:2]} == {0.5}


def test_it_is_complete_when_all_are_through_and_the_rest_starts_again_when_one_is_lost_before() -> None:
    world = begun(ONE, TWO)
    assert world.send("done", ONE) == []
    assert world.wants(ONE, TWO, THREE) == []  # nobody need join any more
    assert world.send("ended", TWO) == [("restart", ONE)]
    world.send("ready", ONE)
    assert ("start", THREE) in world.share()
    world.send("done", ONE)
    assert world.send("done", THREE) == [("finished", "")] and world.told[0]["error"] == ""


def test_it_does_not_wait_for_ever_for_the_first_workers() -> None:
    world = World(least=2)
    world.wants(ONE)
    assert world.after(TIMEOUT - 1) == []
    assert world.after(1) == [("too_few", "")]


def test_with_too_few_it_waits_for_others() -> None:
    world = begun(ONE, TWO, least=2)
    world.send("ended", ONE)
    world.send("ready", TWO)
    assert world.share() == [("waiting", "")]
    assert world.after(TIMEOUT - 1) == []
    assert world.wants(TWO, THREE) == [("enough", ""), ("start", TWO), ("start", THREE), ("membership", "")]
    assert world.after(1) == []


@pytest.mark.parametrize("limit", [0, 1])
def test_the_reset_limit(limit: int) -> None:
    world = begun(ONE, TWO, reset_limit=limit)
    for number in range(limit + 1):
        assert world.send("failed", ONE, consequence=False)[0][0] == "restart"
        world.send("ready", TWO)
        world.send("ready", ONE)
        assert world.share()[-1] == (("membership", "") if number < limit else ("finished", ""))
    assert f"reset_limit={limit}" in world.told[-1]["error"]
