"""``fleetfit tensorboard`` shows the event files of all jobs, those that come while it runs included."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from estimators import TensorFlow
from estimators.cli import tensorboard_server
from estimators.cli.main import main
from estimators.records.record import JobRecord
from estimators.testing import FakeOutcome

#: In TensorBoard's place: looks into its log folder, until both jobs are there.
_READER = """
import os, sys, time
from pathlib import Path

folder = Path(sys.argv[sys.argv.index("--logdir") + 1])

def await_jobs(*names):
    while sorted(path.name for path in folder.iterdir() if any(path.rglob("events.out.*"))) != list(names):
        time.sleep(0.01)

await_jobs("job-1")
Path(os.environ["SEEN"]).touch()
await_jobs("job-1", "job-2")
print(f"both on {sys.argv[sys.argv.index('--host') + 1]}", flush=True)
"""


def write_events(name: str) -> None:
    folder = JobRecord.open(name).tree("algo-1").base / "output/tensorboard/train"
    folder.mkdir(parents=True)
    (folder / "events.out.tfevents.1").write_bytes(b"")


def test_it_opens_all_jobs_and_those_that_come_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FLEETFIT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(tensorboard_server, "_REFRESH_SECONDS", 0.1)
    (tmp_path / "tensorboard").mkdir()
    (tmp_path / "tensorboard/__init__.py").touch()
    (tmp_path / "tensorboard/main.py").write_text(_READER)
    (tmp_path / "train.py").touch()
    for name in ("job-1", "job-2"):
        TensorFlow(
            entry_point="train.py", source_dir=str(tmp_path), instance_type="local_fake",
            run_options=FakeOutcome().run_options(),
        ).fit(job_name=name, logs=False)  # fmt: skip
    write_events("job-1")

    def follow() -> None:
        while not (tmp_path / "seen").exists() and not over.wait(0.01):
            pass
        write_events("job-2")

    over = threading.Event()
    follower = threading.Thread(target=follow)
    follower.start()
    try:
        assert main(["tensorboard"]) == 0
    finally:
        over.set()
        follower.join()
    assert "both on 127.0.0.1" in capfd.readouterr().out
