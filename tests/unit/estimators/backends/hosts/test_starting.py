"""Toolkits of very many hosts are started in turns, between which the supervisor does everything else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar
from unittest.mock import MagicMock

import pytest

from container.contract.strategies import MPI
from estimators.backends.hosts import cluster as clusters
from estimators.backends.hosts.cluster import HostCluster, _Member
from estimators.job.fleets import Capabilities


class Provider:
    """Has hosts that the test gives."""

    capabilities: ClassVar[Capabilities] = Capabilities()

    def __init__(self, loop: Any, spec: Any, options: Any) -> None:
        pass


class Loop:
    """Calls when the test says so."""

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []

    def call_later(self, seconds: float, function: Callable[[], None]) -> MagicMock:
        if seconds == 0:
            self.due.append(function)
        return MagicMock()

    def turn(self) -> None:
        due, self.due = self.due, []
        for function in due:
            function()


class Platform:
    """Has nothing to bring."""

    shared = True

    def bring_saved(self, done: Callable[[Any], None]) -> None:
        done(None)

    def host_ended(self, host: str) -> None: ...


class Cluster(HostCluster):
    """A cluster of them."""

    name = "starting"
    provider_type = Provider  # type: ignore[assignment]

    def platform(self) -> Any:
        return Platform()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> tuple[Cluster, Loop, list[str]]:
    """Four hosts, of which one is started in a turn, and those that were."""
    monkeypatch.setattr(clusters, "_STARTING_S", -1.0)
    loop = Loop()
    made = Cluster(loop, MagicMock(), MagicMock(instance_count=4, strategy=MPI()), MagicMock(), MagicMock())  # type: ignore[arg-type]
    names: list[str] = []

    def train(member: _Member) -> None:
        names.append(member.name)

    for number in range(1, 5):
        member = made._members[f"algo-{number}"] = _Member(made, f"algo-{number}")
        made.training(member)
        made._unstarted.append(member)
    made._start_some(train)
    return made, loop, names


def test_all_are_started_in_the_end(started: tuple[Cluster, Loop, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, loop, names = started
    assert names == [] and cluster.running
    monkeypatch.setattr(clusters, "_STARTING_S", 10.0)
    loop.turn()
    assert names == ["algo-1", "algo-2", "algo-3", "algo-4"] and not loop.due


def test_a_stop_leaves_out_the_others(started: tuple[Cluster, Loop, list[str]]) -> None:
    cluster, loop, names = started
    cluster.stop()
    for _ in range(3):
        loop.turn()
    ended = [call.args[0].host for call in cluster.callbacks.host_ended.call_args_list]  # type: ignore[attr-defined]
    assert names == []
    assert not cluster._training
    assert ended == [f"algo-{number}" for number in range(1, 5)]
