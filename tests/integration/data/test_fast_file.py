"""FastFile mode."""

from __future__ import annotations

import functools
import os
import shutil
import signal
from pathlib import Path

import clusters
import pytest
from jobs_on_s3 import estimator, said
from s3_server import Bucket, Faults
from waiting import until

from container.agent import mounting
from estimators.inputs import TrainingInput

needs_fuse = pytest.mark.skipif(
    shutil.which("fusermount3") is None or not os.access("/dev/fuse", os.R_OK | os.W_OK),
    reason="needs fuse3 and /dev/fuse",
)


fit = functools.partial(clusters.fit, logs=False)


def mounts(folder: Path) -> list[str]:
    lines = Path("/proc/self/mounts").read_text().replace("\\040", " ").splitlines()
    return [line for line in lines if str(folder) in line]


@needs_fuse
def test_what_is_read_is_fetched(s3: Bucket, faults: Faults, home: Path, tmp_path: Path) -> None:
    s3.put("train/read", b"r" * 100_000)
    s3.put("train/d/left", b"l" * 100_000)
    script = """
root = pathlib.Path(os.environ["SM_CHANNEL_MINE"])
print("sizes", sorted((str(p.relative_to(root)), p.stat().st_size) for p in root.rglob("*") if p.is_file()))
print("content", hashlib.sha256((root / "read").read_bytes()).hexdigest()[:8])
"""
    one = estimator(tmp_path, "")
    text = (tmp_path / "code/train.py").read_text()
    (tmp_path / "code/train.py").write_text("import hashlib, os, pathlib\n" + script)
    assert text
    job = fit(one, {"mine": TrainingInput(s3.uri("train"), input_mode="FastFile")})
    assert said(job, "sizes") == ["[('d/left', 100000), ('read', 100000)]"]
    assert len(said(job, "content")) == 1
    assert faults.requests(key="/train/read") != []
    assert faults.requests(key="/train/d/left") == []
    assert mounts(job.record.path) == []
    assert not (job.record.path / "mounts").exists()


@needs_fuse
def test_a_killed_supervisor_leaves_no_mount(s3: Bucket, home: Path, tmp_path: Path) -> None:
    s3.put("train/a", b"x")
    job = fit(
        estimator(tmp_path, "print('found', flush=True); time.sleep(60)"),
        TrainingInput(s3.uri("train"), input_mode="FastFile"),
        wait=False,
    )
    # The script runs: killed earlier, the supervisor may leave the folder that it made for a toolkit that never began.
    until(lambda: any("found" in line.text for line in job.log_lines()))
    assert mounts(job.record.path)
    os.kill(job.record.read_status()["Fleetfit"]["supervisor_pid"], signal.SIGKILL)
    until(lambda: mounts(job.record.path) == [])


@needs_fuse
def test_a_mount_whose_server_was_killed_goes_as_well(s3: Bucket, tmp_path: Path) -> None:
    s3.put("train/a", b"x")
    with mounting.Mounts(tmp_path / "mounts") as mounted:
        assert Path(mounted.path(s3.uri("train/a"))).read_bytes() == b"x"
        [server] = mounted._running.values()
        os.kill(server, signal.SIGKILL)
    assert mounts(tmp_path) == []
