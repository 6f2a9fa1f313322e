"""Programs that end without the tear-down of their modules."""

from __future__ import annotations

import subprocess
import sys

import pytest

START = """
import atexit, sys, threading
from container.system import ending

class Module:
    def __del__(self):
        print("torn down", flush=True)

kept = Module()
def main():
    atexit.register(print, "function")
    threading.Thread(target=lambda: (threading.main_thread().join(), print("thread"))).start()
"""


@pytest.mark.parametrize(
    ("rest", "code", "said"),
    [
        ("    print('main')\n    return 3", 3, ["main", "thread", "function"]),
        ("    sys.exit('why')", 1, ["thread", "function", "torn down"]),
        ("    raise ValueError('why')", 1, ["thread", "function", "torn down"]),
    ],
    ids=["returns", "exits", "raises"],
)
def test_threads_and_exit_functions_come_before_the_end(rest: str, code: int, said: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", START + rest + "\nending.run(main)"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout.split("\n")[:-1]) == (code, said)
    assert "why" in done.stderr or code == 3
