"""What ranks write before the agent that keeps checkpoints in step has looked: it is theirs, and is brought."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from s3_server import Bucket, Faults

from container.agent.syncing import Uploader, restore
from container.contract import messages
from estimators.backends.hosts.checkpoints import Incoming


def bring(host: Path, here: Path, restored: dict[str, tuple[int, int]]) -> None:
    """Run ``agent sync out`` on a host's folder, to its end."""
    done = subprocess.run(
        [sys.executable, "-m", "container", "agent", "sync", "out", "--dir", str(host), "--host", "algo-1"],
        input=messages.encode({"op": "restored", "files": restored}),
        stdout=subprocess.PIPE,
        check=True,
    )
    incoming = Incoming(here, "algo-1", lambda line: None)
    incoming.feed(done.stdout)
    incoming.close()


def write(path: Path, text: str, time: int) -> tuple[int, int]:
    """Write a file; its size and time in ns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, ns=(time, time))
    return len(text), time


def test_only_what_was_brought_to_a_host_is_taken_for_restored(tmp_path: Path) -> None:
    host, here = tmp_path / "host", tmp_path / "here"
    restored = {}
    for name in ("old", "rewritten", "checkpoint-1-step-1/manifest.json"):
        restored[name] = write(host / name, "1234", 10**18)
        write(here / name, "here", 10**18)
    write(host / "rewritten", "5678", 10**18 + 1)  # as long as it was
    write(host / "new", "9", 10**18)
    write(host / "checkpoint-2-step-2" / "manifest.json", "{}", 10**18)
    (host / "checkpoint-1-step-1" / "manifest.json").unlink()
    write(here / ".unfinished" / "weights", "ours", 10**18)
    bring(host, here, restored)
    found = {str(path.relative_to(here)): path.read_text() for path in here.rglob("*") if path.is_file()}
    assert found == {
        "old": "here",
        "rewritten": "5678",
        "new": "9",
        "checkpoint-2-step-2/manifest.json": "{}",
        ".unfinished/weights": "ours",
    }


def test_a_file_that_is_written_again_goes_up_though_it_is_as_long_as_it_was(
    s3: Bucket, faults: Faults, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        s3.put(f"saved/{name}", b"1234")
    restore(tmp_path, s3.uri("saved"), host="algo-1", tell=lambda line: None)
    (tmp_path / "b").write_text("5678")
    uploader = Uploader(tmp_path, s3.uri("saved"), host="algo-1", tell=lambda line: None)
    before = len(faults.requests("PUT", "saved"))
    uploader.run(lambda seconds: True)
    assert len(faults.requests("PUT", "saved")) == before + 1
    assert (s3.get("saved/a"), s3.get("saved/b")) == (b"1234", b"5678")
