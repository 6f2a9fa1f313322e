"""algo-1's rules: who is ready, who failed first, when it is over."""

from __future__ import annotations

from typing import Any

import pytest

from container.contract.failures import Cause, Failure
from container.toolkit.coordinator import Coordinator, CoordinatorState

HOSTS = ("algo-1", "algo-2", "algo-3")


class Cluster:
    """A coordinator, the time, and what it told all hosts."""

    def __init__(self, hosts: tuple[str, ...] = HOSTS) -> None:
        self.hosts = hosts
        self.now = 0.0
        self.told: list[dict[str, Any]] = []
        self.coordinator = Coordinator(hosts, 10.0, self.now)

    def tell(self, message: dict[str, Any] | None) -> None:
        if message is not None:
            self.told.append(message)

    def say(self, host: str, op: str, **more: Any) -> None:
        self.tell(self.coordinator.receive(host, {"op": op, **more}, self.now))

    def all_say(self, op: str) -> None:
        for host in self.hosts:
            self.say(host, op)

    def lose(self, host: str, reason: str) -> None:
        self.tell(self.coordinator.lost(host, reason, self.now))

    def check(self, now: float) -> None:
        self.now = now
        self.tell(self.coordinator.check_gathered(now))

    def ops(self) -> list[str]:
        return [message["op"] for message in self.told]


def failure(rank: int, cause: Cause = Cause.PROCESS, **more: Any) -> dict[str, Any]:
    return Failure(cause=cause, message=f"rank {rank} failed", rank=rank, **more).to_dict()


@pytest.fixture
def running() -> Cluster:
    cluster = Cluster()
    cluster.all_say("ready")
    assert cluster.ops() == ["go"]
    return cluster


def test_it_goes_when_all_are_ready() -> None:
    cluster = Cluster()
    assert cluster.coordinator.missing() == list(HOSTS)
    cluster.say("algo-3", "ready")
    cluster.say("algo-1", "ready")
    cluster.say("algo-1", "ready")  # said twice
    assert cluster.ops() == []
    assert cluster.coordinator.missing() == ["algo-2"]
    cluster.say("algo-2", "ready")
    assert cluster.ops() == ["go"]
    assert cluster.coordinator.state is CoordinatorState.RUNNING


def test_it_is_over_when_all_are_done(running: Cluster) -> None:
    running.say("algo-2", "done")
    running.say("algo-1", "done")
    assert running.ops() == ["go"]
    assert not running.coordinator.all_done
    running.say("algo-3", "done")
    assert running.coordinator.all_done
    running.tell(running.coordinator.finish())
    assert running.ops() == ["go", "finish"] and not running.coordinator.all_done
    assert running.coordinator.state is CoordinatorState.FINISHED
    assert running.coordinator.failure is None


def test_the_first_failure_is_the_jobs(running: Cluster) -> None:
    running.say("algo-2", "failed", failure=failure(5))
    running.say("algo-3", "failed", failure=failure(7))
    running.lose("algo-1", "gone")
    running.lose("algo-3", "gone")
    assert running.ops() == ["go", "end"]
    assert running.coordinator.failure is not None and running.coordinator.failure.rank == 5
    assert running.told[-1]["failure"] == failure(5)


def test_a_host_that_is_silent_before_it_is_ready_is_named() -> None:
    """Preparing may take any time, as long as the host says that it is there."""
    cluster = Cluster()
    cluster.coordinator.joined.add("algo-2")
    cluster.check(9.0)
    cluster.say("algo-2", "preparing")
    cluster.say("algo-3", "ready")
    cluster.check(11.0)
    cluster.check(19.0)
    assert cluster.ops() == []
    cluster.check(19.1)
    assert cluster.ops() == ["end"]
    found = cluster.coordinator.failure
    assert found is not None and (found.cause, found.host) == (Cause.TIMEOUT, "algo-2")
    assert found.message == "algo-2 did not answer within 10 s (connected: algo-2)."


def test_a_failure_before_everybody_is_ready_ends_it_too() -> None:
    cluster = Cluster()
    cluster.say("algo-2", "failed", failure=failure(1, Cause.CONFIGURATION))
    cluster.all_say("ready")
    assert cluster.ops() == ["end"]


@pytest.mark.parametrize("raised", [False, True])
def test_a_lost_host_is_a_failure_that_names_it(running: Cluster, raised: bool) -> None:
    if raised:
        running.say("algo-2", "raised", process="rank 1")
    running.lose("algo-2", "the connection was closed")
    assert running.ops() == ["go", "end"]
    found = running.coordinator.failure
    assert found is not None and (found.cause, found.host) == (Cause.HOST_LOST, "algo-2")
    assert "the connection was closed" in found.message


def test_a_stop_waits_for_every_host(running: Cluster) -> None:
    running.say("algo-2", "stop")
    running.say("algo-1", "stop")  # the backend tells every host
    running.say("algo-3", "stop")
    assert running.ops() == ["go", "stop"]
    running.say("algo-1", "stopped")
    running.say("algo-3", "done")  # it was done before it could be told
    running.say("algo-2", "stopped")
    assert running.ops() == ["go", "stop"]
    running.say("algo-3", "stopped")
    assert running.ops() == ["go", "stop", "finish"]


def test_ranks_that_are_being_stopped_may_fail_and_nothing_else(running: Cluster) -> None:
    running.say("algo-1", "stop")
    running.say("algo-2", "failed", failure=failure(3))
    assert running.ops() == ["go", "stop"]
    assert running.coordinator.failure is None
    running.say("algo-2", "failed", failure=failure(3, Cause.TIMEOUT))
    assert running.ops() == ["go", "stop", "end"]


def test_a_host_that_is_lost_while_stopping_has_stopped(running: Cluster) -> None:
    running.say("algo-1", "stop")
    running.say("algo-1", "stopped")
    running.say("algo-3", "stopped")
    running.lose("algo-2", "gone")
    assert running.ops() == ["go", "stop", "finish"]


def test_a_stop_before_all_are_ready_stops() -> None:
    cluster = Cluster()
    cluster.say("algo-1", "ready")
    cluster.say("algo-1", "stop")
    cluster.say("algo-2", "ready")
    cluster.say("algo-3", "ready")
    assert cluster.ops() == ["stop"]
    cluster.all_say("stopped")
    assert cluster.ops() == ["stop", "finish"]


def test_after_the_end_nothing_changes_the_verdict(running: Cluster) -> None:
    running.all_say("done")
    running.tell(running.coordinator.finish())
    running.say("algo-2", "failed", failure=failure(1))
    running.say("algo-2", "stop")
    running.lose("algo-3", "gone")
    assert running.ops() == ["go", "finish"]
    assert running.coordinator.failure is None


def test_farewells_are_counted(running: Cluster) -> None:
    running.all_say("done")
    running.tell(running.coordinator.finish())
    assert not running.coordinator.everybody_ended
    running.say("algo-2", "ended")
    running.lose("algo-3", "gone")
    assert running.coordinator.everybody_ended


def test_unknown_words_of_a_newer_toolkit_are_ignored(running: Cluster) -> None:
    running.say("algo-2", "dance", partner="algo-3")
    assert running.ops() == ["go"]


def test_a_single_host_is_its_own_cluster() -> None:
    cluster = Cluster(("algo-1",))
    cluster.all_say("ready")
    cluster.all_say("done")
    assert cluster.ops() == ["go"] and cluster.coordinator.all_done
    assert cluster.coordinator.everybody_ended


def test_the_first_exception_is_the_cause_though_others_end_before_it(running: Cluster) -> None:
    """Horovod's exit handler waits for the other ranks, which fail for want of the one that raised."""
    running.say("algo-2", "raised", process="rank 1")
    running.say("algo-1", "raised", process="rank 0")
    running.say("algo-1", "failed", failure=failure(0, host="algo-1", process="rank 0"))
    running.say("algo-1", "failed", failure=failure(0, Cause.LAUNCH, host="algo-1", process="mpirun"))
    assert running.ops() == ["go"]
    running.say("algo-2", "failed", failure=failure(1, host="algo-2", process="rank 1"))
    assert running.ops() == ["go", "end"]
    assert running.coordinator.failure is not None and running.coordinator.failure.rank == 1


def test_an_exception_that_a_process_survived_hides_no_other_failure(running: Cluster) -> None:
    running.say("algo-2", "raised", process="rank 1")
    running.say("algo-3", "failed", failure=failure(2, host="algo-3", process="rank 2"))
    running.say("algo-1", "survived", process="rank 0")  # another
    assert running.ops() == ["go"]
    running.say("algo-2", "survived", process="rank 1")
    assert running.ops() == ["go", "end"]
    assert running.coordinator.failure is not None and running.coordinator.failure.rank == 2


def test_a_deadline_does_not_wait_for_an_exception(running: Cluster) -> None:
    running.say("algo-2", "raised", process="rank 1")
    running.say("algo-3", "failed", failure=failure(2, Cause.TIMEOUT, host="algo-3", process="rank 2"))
    assert running.ops() == ["go", "end"]
