"""Hosts of an elastic job that are taken while none of its attempts runs."""

from __future__ import annotations

import math
import time
import types
from typing import Any

from estimators.job.failure_policy import FailurePolicy
from estimators.supervisor.attempts import Attempts
from estimators.supervisor.elastic.fault_hosts import ElasticHosts
from estimators.supervisor.events import Event, PlainEvent


class Job:
    """What is used of the supervisor."""

    def __init__(self) -> None:
        self.attempts = Attempts(FailurePolicy(min_hosts=2), ("algo-1", "algo-2"))
        self.machine = types.SimpleNamespace(attempts=self.attempts, waits=False, ends=False)
        self.attempt = types.SimpleNamespace(elastic=None)
        self.told: list[tuple[str, str]] = []

    def tell(self, kind: str, host: str, text: str, **data: Any) -> None:
        self.told.append((kind, host))

    def post(self, event: Event) -> None:
        assert event == PlainEvent.HOSTS_CHANGED
        self.told.append(("changed", ""))

    @property
    def present(self) -> tuple[str, ...]:
        return self.attempts.fleet.present(time.monotonic())


def test_who_is_taken_between_two_attempts_is_not_there_for_the_next_one() -> None:
    job = Job()
    hosts = ElasticHosts(job)  # type: ignore[arg-type]
    hosts.interrupt("algo-1", 2.0, 60.0)
    assert job.present == ("algo-1", "algo-2")  # the job is about to be over
    job.attempts.taken.append("algo-2")  # an attempt ends by its notice
    hosts.interrupt("algo-1", 2.0, 60.0)
    assert job.present == ("algo-2",)
    job.attempts.taken.clear()
    job.machine.waits = True
    hosts.interrupt("algo-1", 2.0, 1.0)  # which is not there
    hosts.remove("algo-2", None)
    assert job.attempts.fleet.gone["algo-2"] == math.inf and job.attempts.fleet.gone["algo-1"] > time.monotonic() + 30
    hosts.return_host("algo-1")
    assert job.present == ("algo-1",)
    assert job.told == [("interrupted", "algo-1"), ("removed", "algo-2"), ("returned", "algo-1"), ("changed", "")]
