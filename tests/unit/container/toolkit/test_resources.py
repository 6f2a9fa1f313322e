"""What is looked at of ranks and hosts."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace
from typing import Any

from container.contract.plan import Role
from container.system.loop import Loop
from container.toolkit import resources
from container.toolkit.process_group import ClusterProcess


def test_a_look_is_followed_by_a_wait_that_is_much_longer_than_the_look(loop: Loop) -> None:
    waits: list[float] = []
    told: list[tuple[int | None, dict[str, Any]]] = []
    member = ClusterProcess("rank 0", Role.RANK, rank=0, pid=os.getpid(), started_at=time.monotonic() - 1)

    def call_later(seconds: float, callback: Any) -> None:
        waits.append(seconds)

    loop.call_later = call_later  # type: ignore[method-assign, assignment]
    host: Any = SimpleNamespace(members=[member], tell=lambda kind, rank, **values: told.append((rank, values)))
    sampler = resources.ResourceSampler(loop, host)
    sampler.start()
    costs = []
    for _ in range(20):
        began = time.process_time()
        sampler._look()
        costs.append(time.process_time() - began)
    shares = [cost / wait for cost, wait in zip(costs, waits[1:], strict=True)]
    assert max(shares) < 0.005
    assert {rank for rank, _ in told} == {0, None}
    assert {"cpu_percent", "memory_bytes"} == set(told[0][1])
