"""What ranks use of the machine, over time."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from container.contract.plan import Role
from container.contract.wire import Event
from container.system.loop import Loop
from container.toolkit import resources
from container.toolkit.process_group import Member
from estimators import MPI, Callback, ConfigurationError, TensorFlow, TrainingJob

#: One rank keeps a core busy, in a process of its own, until both have been looked at.
SCRIPT = """
import os, subprocess, sys, time
if os.environ["OMPI_COMM_WORLD_RANK"] == "0":
    held = bytearray(200_000_000)
    subprocess.run([sys.executable, "-c", "import os\\nwhile not os.path.exists(os.environ['SEEN']): pass"])
while not os.path.exists(os.environ["SEEN"]):
    time.sleep(0.01)
"""


class UntilSeen(Callback):
    """Lets the script end when both ranks have been looked at since rank 0 has its memory and keeps its core busy."""

    def __init__(self, seen: Path) -> None:
        self.seen = seen
        self.cpu: dict[int | None, float] = {}

    def on_event(self, job: TrainingJob, event: Event) -> None:
        if event.kind == "resources" and "cpu_percent" in event.data:
            if event.rank or event.data["memory_bytes"] > 200_000_000:
                self.cpu[event.rank] = event.data["cpu_percent"]
            if self.cpu.get(0, 0) > self.cpu.get(1, 100):
                self.seen.touch()


def test_each_rank_over_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEETFIT_HOME", str(tmp_path / "home"))
    (tmp_path / "train.py").write_text(SCRIPT)
    estimator = TensorFlow(
        entry_point=str(tmp_path / "train.py"),
        distribution=MPI(processes_per_host=2),
        model_dir=False,
        environment={"SEEN": str(tmp_path / "seen")},
    )
    job = estimator.fit(logs=False, callbacks=[UntilSeen(tmp_path / "seen")])
    frame = job.metrics("system")
    last = {(row.rank, row.name): row.value for row in frame[frame["rank"].notna()].itertuples()}
    assert last[0, "memory_bytes"] > 200_000_000 > last[1, "memory_bytes"] > 1_000_000
    assert last[0, "cpu_percent"] > last[1, "cpu_percent"] >= 0
    assert set(frame["host"]) == {"algo-1"}
    assert len(job.metrics()) == 0
    with pytest.raises(ConfigurationError, match="Did you mean 'system'"):
        job.metrics("sytem")


def test_looking_costs_little(loop: Loop) -> None:
    """What one look takes, and how long it is then to the next."""
    waits, told = [], []
    member = Member("rank 0", Role.RANK, rank=0, pid=os.getpid(), started_at=time.monotonic() - 1)

    def call_later(seconds: float, callback: Any) -> None:
        waits.append(seconds)

    loop.call_later = call_later  # type: ignore[method-assign, assignment]
    sampler = resources.ResourceSampler(loop, lambda: [member], lambda rank, values: told.append((rank, values)))
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
