"""What breaks beside S3 itself: a full disk, an agent that is killed, several ranks on a slow server."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import signal
import subprocess
from pathlib import Path

import feeding
import pytest
from jobs_on_s3 import estimator
from s3_server import Bucket, Faults
from waiting import until

from container.agent import channels
from container.contract.channels import HostChannel
from container.contract.errors import AgentError
from container.formats import RecordFormat
from estimators import PreflightWarning
from estimators.inputs import TrainingInput

pytestmark = pytest.mark.filterwarnings(f"ignore::{PreflightWarning.__module__}.PreflightWarning")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_a_cache_on_a_full_disk(s3: Bucket, tmp_path: Path) -> None:
    s3.put("train/a", b"a" * 100_000)
    s3.put("train/b", b"b" * 3_000_000)
    cache = tmp_path / "cache"
    cache.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(cache)], check=True)
    try:
        wanted = HostChannel(name="train", uri=s3.uri("train"))
        with pytest.raises(
            AgentError,
            match=r"'train': .*1.\d MB are free, but .* needs 3.1 MB, and 268.4 MB must stay free.*FLEETFIT_CACHE",
        ):
            channels.prepare([tmp_path / "ml"], [wanted], tell=lambda line: None)
        subprocess.run(["mount", "-o", "remount,size=1g", str(cache)], check=True)
        channels.prepare([tmp_path / "ml"], [wanted], tell=lambda line: None)
        assert (tmp_path / "ml/input/data/train/b").read_bytes() == b"b" * 3_000_000
    finally:
        subprocess.run(["umount", str(cache)], check=True)


def test_an_agent_that_is_killed_ends_the_job(
    s3: Bucket, faults: Faults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader would take the stream's end for the epoch's, or wait for ever."""
    monkeypatch.setenv("FLEETFIT_HOME", str(tmp_path / "home"))
    s3.put("train/a", b"line\n" * 2_000_000)
    one = estimator(tmp_path, "")
    (tmp_path / "code" / "train.py").write_text(
        "import os, time\n"
        "file = open(os.environ['SM_CHANNEL_MINE'] + '_0', 'rb')\n"
        "print('reads', len(file.read(10)), flush=True)\n"
        "time.sleep(300)\n"
    )
    job = one.fit({"mine": TrainingInput(s3.uri("train"), input_mode="Pipe")}, wait=False)
    until(lambda: job.status != "InProgress" or any(line.text.startswith("reads") for line in job.log_lines()))
    assert job.status == "InProgress", job.describe()
    [agent] = agents(tmp_path)
    os.kill(agent, signal.SIGKILL)
    until(lambda: job.status == "Failed")
    assert "algo-1, agent: the host agent was killed by SIGKILL" in job.describe()["FailureReason"]


def agents(folder: Path) -> list[int]:
    """The agents that feed the FIFOs of trees below a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
            if b"pipe" in words and any(word.startswith(os.fsencode(folder)) for word in words):
                found.append(int(entry.name))
    return found


def test_several_ranks_download_an_object_once(s3: Bucket, faults: Faults, tmp_path: Path) -> None:
    """Also where the connection is cut, and the server is slow."""
    lines = [b"%07d" % number for number in range(600_000)]
    for part in range(3):
        s3.put(f"train/{part}", b"".join(line + b"\n" for line in lines[part::3]))
    faults.cut(after=300_000, times=2, key="train/1")
    faults.stall(after=500_000, seconds=0.5, key="train/2")
    channels = {
        "dealt": {"uri": s3.uri("train"), "distribution": "ShardedByS3Key"},
        "whole": {"uri": s3.uri("train"), "distribution": "FullyReplicated"},
    }
    with feeding.agent(tmp_path / "ml", channels, ranks=3) as host:

        def read(channel: str) -> list[list[bytes]]:
            with concurrent.futures.ThreadPoolExecutor(3) as pool:
                streams = pool.map(lambda rank: host.read(channel, 0, rank), range(3))
                return [feeding.split(RecordFormat.TEXT_LINE, stream) for stream in streams]

        shares = read("dealt")
        asked = [seen for seen in faults.requests("GET", "train/") if "list-type" not in seen.path]
        assert [len(share) for share in shares] == [200_000] * 3
        assert sorted(line for share in shares for line in share) == lines
        assert len(asked) <= 3 + 3, "an object is read not once, and again after each fault"
        faults.seen.clear()
        assert all(sorted(share) == lines for share in read("whole"))
        asked = [seen for seen in faults.requests("GET", "train/") if "list-type" not in seen.path]
        assert len(asked) == 3, "an object of a replicated channel is read not once"
