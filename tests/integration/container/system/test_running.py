"""What runs processes for a job: how they end, and what is said when one cannot be started."""

from __future__ import annotations

import gc
import os
import signal
import sys
from pathlib import Path

import pytest
from loops import RunUntil

from container.system import folders, processes
from container.system.loop import Loop
from container.system.running import ProcessEnd, Runner

pytestmark = pytest.mark.usefixtures("own_children")


class Follower:
    """Keeps what is told of a process."""

    def __init__(self) -> None:
        self.said = bytearray()
        self.end: ProcessEnd | None = None

    def on_output(self, data: bytes) -> None:
        assert self.end is None, "something was said after the end was told"
        self.said += data

    on_errors = on_output

    def over(self, end: ProcessEnd) -> None:
        self.end = end


def test_every_byte_comes_before_the_end_is_told(loop: Loop, run_until: RunUntil, tmp_path: Path) -> None:
    follower = Follower()
    script = "import os, sys; sys.stdin.read(); os.write(1, b'x' * 300_000); os.write(2, b'y'); sys.exit(3)"
    process = Runner(loop, os.environ).run(
        [sys.executable, "-c", script],
        {},
        follower,
        cwd=tmp_path,
    )
    process.close_input()
    run_until(lambda: follower.end)
    assert follower.end == ProcessEnd(exit_code=3) and len(follower.said) == 300_001
    process.signal(signal.SIGKILL)  # what is told to one that has ended is dropped
    process.write(b"more")


def test_what_cannot_be_started_is_told_later_and_leaves_nothing(
    loop: Loop, run_until: RunUntil, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "root", lambda: str(tmp_path))
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    followers = [Follower() for _ in range(3)]
    runner = Runner(loop, os.environ)
    for number, (argv, folder) in enumerate(((["/nothing/there"], tmp_path), (["true"], tmp_path / "gone"))):
        runner.run(argv, {}, followers[number], cwd=folder, lifeline="LIFE", runtime="RUN")
    monkeypatch.setattr(folders, "root", lambda: str(tmp_path / "gone"))
    runner.run(["true"], {}, followers[2], cwd=tmp_path, runtime="RUN")
    assert not any(follower.end for follower in followers), "an end was told at once"
    run_until(lambda: all(follower.end for follower in followers))
    for follower in followers:
        assert follower.end is not None and str(follower.end.error).endswith(": No such file or directory")
    assert not runner.running and not list(tmp_path.iterdir()) and len(os.listdir("/proc/self/fd")) == before


def test_what_a_killed_leader_left_is_ended_and_others_are_not(loop: Loop, run_until: RunUntil, tmp_path: Path) -> None:
    first, second = Follower(), Follower()
    runner = Runner(loop, os.environ)
    other = runner.run(["sleep", "1000"], {}, second, cwd=tmp_path)
    script = "import os, time; pid = os.fork(); print(pid, flush=True) if pid else None; time.sleep(1000)"
    leader = runner.run([sys.executable, "-c", script], {}, first, cwd=tmp_path, lifeline="LIFE")
    run_until(lambda: first.said.endswith(b"\n"))
    leader.signal(signal.SIGKILL)
    run_until(lambda: first.end)
    assert first.end == ProcessEnd(signal=signal.SIGKILL) and processes.state(int(first.said)) == ""
    assert second.end is None
    other.signal(signal.SIGTERM)
    run_until(lambda: second.end)
    assert second.end == ProcessEnd(signal=signal.SIGTERM)
