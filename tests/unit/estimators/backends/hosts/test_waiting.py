"""What a job says while it waits for hosts: before it trains, and when an elastic one has lost them all."""

from __future__ import annotations

from typing import Any, ClassVar
from unittest.mock import MagicMock, call

from estimators.backends.hosts.cluster import HostCluster
from estimators.job.fleets import Capabilities


class Provider:
    """Has no hosts."""

    capabilities: ClassVar[Capabilities] = Capabilities(shared_machine=True)

    def __init__(self, loop: Any, spec: Any, options: Any) -> None:
        self.tell: Any = None


class Cluster(HostCluster):
    """A cluster of it."""

    name = "waiting"
    provider_type = Provider  # type: ignore[assignment]


def test_a_job_that_has_begun_to_train_does_not_go_back_to_pending() -> None:
    callbacks = MagicMock()
    cluster = Cluster(MagicMock(), MagicMock(), MagicMock(), MagicMock(), callbacks)
    cluster._provider.tell("no room yet")
    cluster._say_training()
    cluster._provider.tell("no room for the host that is lost")
    assert callbacks.secondary_status.call_args_list == [
        call("Pending", "no room yet"),
        call("Training", ""),
        call("Training", "no room for the host that is lost"),
    ]
