"""Who is waited for while the newest checkpoint is brought to every host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar
from unittest.mock import MagicMock

import pytest

from estimators.backends.hosts.cluster import HostCluster, _Member
from estimators.job.fleets import Capabilities


class Provider:
    """Has hosts that the test gives."""

    capabilities: ClassVar[Capabilities] = Capabilities()

    def __init__(self, loop: Any, spec: Any, options: Any) -> None:
        pass

    def release(self, host: Any) -> None:
        """It is forgotten."""


class Platform:
    """Brings what its host has saved when the test says so."""

    shared = False

    def __init__(self) -> None:
        self.waiting: list[Callable[[Any], None]] = []
        self.restored = 0

    def bring_saved(self, done: Callable[[Any], None]) -> None:
        self.waiting.append(done)

    def brought(self) -> None:
        waiting, self.waiting = self.waiting, []
        for done in waiting:
            done(None)

    def restore(self, then: Callable[[], None]) -> None:
        self.restored += 1
        then()

    def end_attempt(self, then: Callable[[], None], host: str) -> None:
        self.bring_saved(lambda failure: then())

    def start_syncs(self) -> None: ...
    def lost(self) -> None: ...
    def host_ended(self, host: str) -> None: ...


class Cluster(HostCluster):
    """A cluster of them."""

    name = "sharing"
    provider_type = Provider  # type: ignore[assignment]

    def platform(self) -> Any:
        return Platform()


@pytest.fixture
def cluster() -> Cluster:
    """Three hosts that train."""
    made = Cluster(MagicMock(), MagicMock(), MagicMock(instance_count=3, strategy=None), MagicMock(), MagicMock())
    for name in ("algo-1", "algo-2", "algo-3"):
        member = made._members[name] = _Member(made, name)
        member.host = MagicMock()
        made.training(member)
    return made


def platforms(cluster: Cluster) -> list[Any]:
    return [member.platform for member in cluster._members.values()]


def test_every_host_has_the_newest_when_all_is_shared(cluster: Cluster) -> None:
    shared: list[bool] = []
    cluster.share_checkpoints(lambda: shared.append(True))
    for _ in range(2):  # what all have saved comes here, then it goes to all
        for platform in platforms(cluster):
            assert not shared
            platform.brought()
    assert shared == [True] and [platform.restored for platform in platforms(cluster)] == [2, 2, 2]


@pytest.mark.parametrize("end", ["is let go", "is lost"])
def test_a_host_that_goes_meanwhile_is_not_waited_for(cluster: Cluster, end: str) -> None:
    shared: list[bool] = []
    cluster.share_checkpoints(lambda: shared.append(True))
    leaving = cluster._members["algo-3"]
    if end == "is let go":
        leaving.release()
    else:
        leaving._lost("no sign of life")
    for _ in range(2):
        for platform in platforms(cluster)[:2]:
            platform.brought()
    assert shared == [True] and platforms(cluster)[2].restored == 0


def test_what_a_host_saved_that_has_just_ended_is_waited_for(cluster: Cluster) -> None:
    cluster._members["algo-1"].trained()
    shared: list[bool] = []
    cluster.share_checkpoints(lambda: shared.append(True))
    first, *others = platforms(cluster)
    for other in others:
        other.brought()
    assert [other.waiting for other in others] == [[], []]  # the second round has not begun
    for platform in (first, first, *others):
        platform.brought()
    assert shared == [True] and first.restored == 0
