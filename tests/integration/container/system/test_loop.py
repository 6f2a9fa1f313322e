"""The event loop and its children. Real processes."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from typing import Any

from container.system import processes
from container.system.loop import SelectorLoop

ENV = {"PATH": "/usr/bin:/bin"}


def test_every_child_is_told_once(loop: SelectorLoop, run_until: Callable[..., None], own_children: None) -> None:
    """Also those that end while nobody looks, many at once, and those that the loop ends itself."""
    ended: dict[int, list[Any]] = {}

    def start(*command: str) -> int:
        pid = processes.spawn(command, env=ENV)
        loop.on_child(pid, lambda status: ended.setdefault(pid, []).append(processes.decode_status(status)))
        return pid

    pids = [start("sh", "-c", f"exit {number}") for number in range(20)]
    run_until(lambda: len(ended) == 20)
    assert [ended[pid] for pid in pids] == [[(number, None)] for number in range(20)]
    pid = start("sleep", "300")
    assert loop.end_descendants() == []
    assert ended[pid] == [(None, signal.SIGKILL)]
    # subprocess waits for its own children while the loop reaps; neither hangs.
    assert subprocess.run(["true"], check=False).returncode == 0
