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


def test_every_byte_comes_before_the_end_is_told(loop: Loop, run_until: RunUntil, tmp_path: Path) -> None:
    said: list[bytes] = []
    ends: list[tuple[ProcessEnd, int]] = []
    script = "import os, sys; sys.stdin.read(); os.write(1, b'x' * 300_000); os.write(2, b'y'); sys.exit(3)"
    process = Runner(loop, os.environ).run(
        [sys.executable, "-c", script],
        {},
        said.append,
        lambda end: ends.append((end, sum(map(len, said)))),
        cwd=tmp_path,
    )
    process.close_input()
    run_until(lambda: ends)
    assert ends == [(ProcessEnd(exit_code=3), 300_001)]
    process.signal(signal.SIGKILL)  # what is told to one that has ended is dropped
    process.write(b"more")


def test_what_cannot_be_started_is_told_later_and_leaves_nothing(
    loop: Loop, run_until: RunUntil, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "root", lambda: str(tmp_path))
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    ends: list[ProcessEnd] = []
    runner = Runner(loop, os.environ)
    for argv, folder in ((["/nothing/there"], tmp_path), (["true"], tmp_path / "gone")):
        runner.run(argv, {}, print, ends.append, cwd=folder, lifeline="LIFE", runtime="RUN")
    monkeypatch.setattr(folders, "root", lambda: str(tmp_path / "gone"))
    runner.run(["true"], {}, print, ends.append, cwd=tmp_path, runtime="RUN")
    assert ends == []
    run_until(lambda: len(ends) == 3)
    assert [end.error and end.error.rpartition(": ")[2] for end in ends] == ["No such file or directory"] * 3
    assert not runner.running and not list(tmp_path.iterdir()) and len(os.listdir("/proc/self/fd")) == before


def test_what_a_killed_leader_left_is_ended_and_others_are_not(loop: Loop, run_until: RunUntil, tmp_path: Path) -> None:
    ends: list[ProcessEnd] = []
    said = bytearray()
    other_ends: list[ProcessEnd] = []
    runner = Runner(loop, os.environ)
    other = runner.run(["sleep", "1000"], {}, print, other_ends.append, cwd=tmp_path)
    script = "import os, time; pid = os.fork(); print(pid, flush=True) if pid else None; time.sleep(1000)"
    leader = runner.run([sys.executable, "-c", script], {}, said.extend, ends.append, cwd=tmp_path, lifeline="LIFE")
    run_until(lambda: said.endswith(b"\n"))
    leader.signal(signal.SIGKILL)
    run_until(lambda: ends)
    assert ends == [ProcessEnd(signal=signal.SIGKILL)] and processes.state(int(said)) == ""
    assert not other_ends
    other.signal(signal.SIGTERM)
    run_until(lambda: other_ends)
    assert other_ends == [ProcessEnd(signal=signal.SIGTERM)]
