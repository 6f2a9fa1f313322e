"""What a terminal shows while a job runs: a line below the logs that lives, and nothing of it at the end."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path

import clusters
from screens import screen

SCRIPT = """
import os, time
print("loss: 0.25", flush=True)
while not os.path.exists(os.environ["GO"]):
    time.sleep(0.01)
print("over", flush=True)
"""


class Terminal:
    """``fleetfit train`` on a terminal of 60 columns.

    Args:
        folder: Where it is run.
        script: What it trains.
    """

    def __init__(self, folder: Path, script: str) -> None:
        (folder / "train.py").write_text(script)
        self._main, ours = os.openpty()
        fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
        command = [
            Path(sys.executable).with_name("fleetfit"), "train", "train.py", "--name", "job-1",
            "--metric", "loss=loss: ([0-9.]+)", "--env", f"GO={folder / 'go'}",
        ]  # fmt: skip
        env = {**os.environ, "TERM": "xterm", "NO_COLOR": "1"}
        self.process = subprocess.Popen(command, cwd=folder, env=env, stdin=ours, stdout=ours, stderr=ours)
        os.close(ours)
        os.set_blocking(self._main, False)
        self.text = ""

    def read(self) -> bool:
        """Take what it has written."""
        try:
            data = os.read(self._main, 1 << 16)
        except (BlockingIOError, OSError):  # it writes nothing, or has ended
            return False
        self.text += data.decode()
        return True

    def until(self, seen: Callable[[str], object]) -> None:
        """Wait until it has shown something."""
        clusters.until(lambda: (self.read(), seen(self.text))[1], say=lambda: self.text)

    def finish(self) -> None:
        """Wait for its end, and take what is left."""
        self.until(lambda text: self.process.poll() is not None)
        while self.read():
            pass
        os.close(self._main)

    @property
    def screen(self) -> list[str]:
        """What is left on it."""
        return screen(self.text)


def test_a_line_lives_below_the_logs_until_the_table_takes_its_place(tmp_path: Path, home: Path) -> None:
    terminal = Terminal(tmp_path, SCRIPT)
    terminal.until(lambda text: re.search(r"training · loss 0\.25 · \d+ s", text))
    assert terminal.screen[-1].startswith("training · loss 0.25 · ")
    (tmp_path / "go").touch()
    terminal.finish()
    shown = terminal.screen
    assert terminal.process.returncode == 0
    assert [line for line in shown if line.startswith("[algo-1:rank 0]")] == [
        "[algo-1:rank 0] loss: 0.25", "[algo-1:rank 0] over",
    ]  # fmt: skip
    assert not [line for line in shown if " · loss" in line and "training ·" in line]
    assert any(line.startswith("job-1  Completed") for line in shown)
    assert max(map(len, shown)) <= 60 or "logs" in max(shown, key=len)


def test_ctrl_c_prints_that_it_is_stopped_and_the_table(tmp_path: Path, home: Path) -> None:
    terminal = Terminal(tmp_path, SCRIPT)
    terminal.until(lambda text: "loss 0.25" in text)
    terminal.process.send_signal(signal.SIGINT)
    terminal.finish()
    assert "stopping: 5 s to save; interrupt again to end the job at" in terminal.text
    shown = [line for line in terminal.screen if line]
    assert shown[:3] == [
        "training job job-1: 1 host, on local_process", "[algo-1:rank 0] loss: 0.25", "training job job-1: stopped.",
    ]  # fmt: skip
    assert shown[4] == "job-1  Stopped" and "Traceback" not in terminal.text and "interrupted." not in terminal.text
