"""Whenever a process that saves is killed, what it leaves can be trusted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from container.checkpoint import Checkpointer
from container.checkpoint.store import CheckpointStore

KILLS = Path(__file__).parent / "kills.py"


def test_60_kills_at_random_moments(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(KILLS), str(tmp_path / "checkpoints"), "60", "20261121"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    seen = json.loads(done.stdout)
    assert seen["kills"] >= 60
    # The moments were those that matter: most came to training, and many died while they wrote.
    assert seen["restored"] >= 10 and seen["staged"] >= 5 and seen["steps"] >= 20, seen


#: What the store does to the file system, in order.
CALLS = ("mkdir", "open", "write", "fsync", "close", "rename", "unlink", "rmdir")


def save_until_call(directory: Path, number: int) -> bool:
    """Save step 2, in a process that is killed before its ``number``-th call that touches the file system.

    Returns:
        Whether it came to an end before.
    """
    child = os.fork()
    if child == 0:
        count = 0

        def counted(function):  # type: ignore[no-untyped-def]
            def call(*args, **kwargs):  # type: ignore[no-untyped-def]
                nonlocal count
                if count == number:
                    os.kill(os.getpid(), signal.SIGKILL)
                count += 1
                return function(*args, **kwargs)

            return call

        try:
            for name in CALLS:
                setattr(os, name, counted(getattr(os, name)))
            save(directory, 2)
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0
    return not os.WIFSIGNALED(status)


def save(directory: Path, step: int) -> None:
    with Checkpointer(directory, keep=1, asynchronous=False) as checkpointer:
        checkpointer.save({"a": np.full(1000, step), "b": np.full(10, -step)}, step=step)


def restored_step(directory: Path) -> int:
    restored = Checkpointer(directory, read_only=True).restore()
    assert restored is not None and not restored.skipped
    assert (restored.arrays["arrays"]["a"] == restored.step).all()
    assert (restored.arrays["arrays"]["b"] == -restored.step).all()
    return restored.step


def test_a_kill_before_each_single_call(tmp_path: Path) -> None:
    found = []
    for number in range(200):
        directory = tmp_path / str(number)
        save(directory, 1)
        reached_end = save_until_call(directory, number)
        found.append(restored_step(directory))
        save(directory, 3)
        assert restored_step(directory) == 3
        assert sorted(os.listdir(directory)) == [".lock", CheckpointStore(directory).names()[-1]]
        if reached_end:
            break
    assert reached_end and len(found) > 20
    assert found == sorted(found) and set(found) == {1, 2}


def test_everything_is_on_the_disk_before_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that dies can lose whatever was not brought to the disk, in any order."""
    happened: list[str] = []
    fsync, rename = os.fsync, os.rename

    def watched_fsync(fd: int) -> None:
        happened.append("sync " + os.readlink(f"/proc/self/fd/{fd}").rpartition("/")[2])
        fsync(fd)

    def watched_rename(source: str, target: str) -> None:
        happened.append("rename to " + os.path.basename(target))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "rename", watched_rename)
    with Checkpointer(tmp_path, asynchronous=False) as checkpointer:
        checkpointer.save({"a": np.arange(5)}, step=7)
    assert happened[:2] == ["sync arrays.safetensors", "sync manifest.json"]
    assert happened[2].startswith("sync .staging-")
    assert happened[3:] == ["rename to checkpoint-00000001-step-7", f"sync {tmp_path.name}"]
