"""A host that is about to be taken away: the attempt saves and ends, or the host is replaced before it begins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar
from unittest.mock import MagicMock, call

import pytest

from container.contract.strategies import MPI
from estimators.backends.hosts.cluster import HostCluster
from estimators.job.fleets import Capabilities

HOSTS = ("algo-1", "algo-2")


class Provider:
    """Gives hosts when the test says so."""

    capabilities: ClassVar[Capabilities] = Capabilities()

    def __init__(self, loop: Any, spec: Any, options: Any) -> None:
        self.waiting: dict[str, Callable[[Any], None]] = {}
        self.released: list[str] = []
        self.hosts: dict[str, Any] = {}

    def acquire(self, name: str, ready: Callable[[Any], None], failed: Callable[[str], None]) -> None:
        assert name not in self.waiting
        self.waiting[name] = ready

    def give(self, *names: str) -> None:
        for name in names:
            host = MagicMock()
            host.name = name
            self.hosts[name] = host
            self.waiting.pop(name)(host)

    def release(self, host: Any) -> None:
        self.released.append(host.name)


class Platform:
    """Prepares its host when the test says so."""

    shared = False

    def __init__(self) -> None:
        self.prepared: Callable[[], None] = lambda: None

    def prepare(self, host: Any, number: int, hosts: int, then: Callable[[], None], *, joins: bool) -> None:
        self.prepared = then

    def end_attempt(self, then: Callable[[], None], host: str) -> None:
        then()


class Cluster(HostCluster):
    """Notes when the toolkits are started."""

    name = "notices"
    provider_type = Provider  # type: ignore[assignment]
    started = 0

    def platform(self) -> Any:
        return Platform()

    def _start_toolkits(self, members: Any) -> None:
        self._say_training()
        assert [member.name for member in members] == list(HOSTS)
        assert not any(member.lost or member.noticed or member.host is None for member in members)
        self.started += 1


@pytest.fixture
def cluster() -> Cluster:
    """Two hosts that the first attempt has asked for."""
    spec = MagicMock(instance_count=2, hosts=HOSTS, strategy=MPI())
    made = Cluster(MagicMock(), MagicMock(), spec, MagicMock(), MagicMock())
    made.start(0)
    return made


def provider(cluster: Cluster) -> Provider:
    return cluster.provider  # type: ignore[return-value]


def prepared(cluster: Cluster, *names: str) -> None:
    for name in names:
        cluster._members[name].platform.prepared()  # type: ignore[attr-defined]


def test_one_that_trains_interrupts_the_attempt_and_is_replaced_for_the_next(cluster: Cluster) -> None:
    there = provider(cluster)
    there.give(*HOSTS)
    prepared(cluster, *HOSTS)
    there.hosts["algo-2"].on_notice(20.0)
    assert cluster.started == 1 and there.released == []
    assert cluster.callbacks.interrupted.call_args_list == [call("algo-2", 20.0)]  # type: ignore[attr-defined]
    cluster.start(1)
    assert there.released == ["algo-2"] and list(there.waiting) == ["algo-2"]


@pytest.mark.parametrize("had", ["prepared", "being prepared"])
def test_one_that_waits_for_another_is_replaced_at_once(cluster: Cluster, had: str) -> None:
    there = provider(cluster)
    there.give("algo-2")
    if had == "prepared":
        prepared(cluster, "algo-2")
    late = cluster._members["algo-2"].platform.prepared  # type: ignore[attr-defined]
    there.hosts["algo-2"].on_notice(20.0)
    assert there.released == ["algo-2"] and set(there.waiting) == set(HOSTS)
    late()  # what was on its way counts for nothing
    there.give("algo-1")
    prepared(cluster, "algo-1")
    assert not cluster.started
    there.give("algo-2")
    prepared(cluster, "algo-2")
    assert cluster.started == 1
    cluster.callbacks.interrupted.assert_not_called()  # type: ignore[attr-defined]
    cluster.callbacks.failed.assert_not_called()  # type: ignore[attr-defined]


def test_one_that_hears_of_it_between_two_attempts_is_replaced(cluster: Cluster) -> None:
    there = provider(cluster)
    there.give(*HOSTS)
    prepared(cluster, *HOSTS)
    first = dict(there.hosts)
    first["algo-1"].on_notice(20.0)
    cluster.start(1)
    first["algo-2"].on_notice(19.0)
    assert there.released == list(HOSTS)
    first["algo-2"].on_lost("the node is gone")
    there.give(*HOSTS)
    prepared(cluster, *HOSTS)
    assert cluster.started == 2
    cluster.callbacks.failed.assert_not_called()  # type: ignore[attr-defined]
