"""Commands end when they should, and take their children with them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from waiting import until

from estimators.provision import commands, locks
from estimators.provision.progress import ProgressDisplay

GRANDPARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
time.sleep(60)
"""


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_lines_arrive_and_are_kept(tmp_path: Path) -> None:
    seen: list[str] = []
    finished = commands.run(
        [sys.executable, "-c", r"import sys; print('ä'); print('b\r'); sys.stdout.write('c'); sys.exit(3)"],
        log=tmp_path / "logs" / "x.log",
        environment={**os.environ, "PYTHONIOENCODING": "utf-8"},
        on_line=seen.append,
    )
    assert finished.returncode == 3
    assert finished.lines == tuple(seen) == ("ä", "b", "c")
    assert (tmp_path / "logs" / "x.log").read_text().startswith("$ ")


def test_an_interrupt_ends_the_whole_group(tmp_path: Path) -> None:
    pids: list[int] = []

    def interrupt(line: str) -> None:
        pids.append(int(line))
        raise KeyboardInterrupt

    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        commands.run(
            [sys.executable, "-c", GRANDPARENT], log=tmp_path / "log", environment=os.environ, on_line=interrupt
        )
    assert time.monotonic() - started < 4
    until(lambda: not is_alive(pids[0]))


def test_the_command_dies_with_us_and_the_lock_waits_for_it(tmp_path: Path) -> None:
    script = f"""
import os, sys
from pathlib import Path
from estimators.provision import commands, locks
with locks.exclusive(Path({str(tmp_path / "lock")!r})) as lock:
    commands.run(
        [sys.executable, "-c",
         "import os, signal, time; signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1), os._exit(0)));"
         "print(os.getpid(), flush=True); time.sleep(60)"],
        log=Path({str(tmp_path / "log")!r}), environment=os.environ, inherit=[lock],
        on_line=lambda line: print(line, flush=True))
"""
    ours = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert ours.stdout is not None
    child = int(ours.stdout.readline())
    ours.send_signal(signal.SIGKILL)
    ours.wait()
    waited: list[bool] = []

    class Waits(ProgressDisplay):
        def note(self, text: str) -> None:
            waited.append(is_alive(child))

    with locks.exclusive(tmp_path / "lock", Waits()):
        # Its descriptors are closed a moment before it is gone.
        until(lambda: not is_alive(child))
    assert waited == [True]
