"""What ranks use of the machine, over time."""

from __future__ import annotations

from pathlib import Path

import pytest

from container.contract.wire import Event
from estimators import MPI, ConfigurationError, TensorFlow, TrainingJob
from estimators.callbacks import Callback

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
