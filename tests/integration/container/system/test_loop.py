"""The event loop: descriptors, timers, signals, children."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from typing import Any

from container.system import processes
from container.system.loop import Loop


def test_every_child_is_told_once(loop: Loop, run_until: Callable[..., None]) -> None:
    """Also those that end while nobody looks, and many at once."""
    ended: dict[int, list[Any]] = {}
    pids = []
    for number in range(20):
        pid = processes.spawn(["sh", "-c", f"exit {number}"], env={"PATH": "/usr/bin:/bin"})
        pids.append(pid)
        loop.on_child(pid, lambda status, pid=pid: ended.setdefault(pid, []).append(processes.decode_status(status)))  # type: ignore[misc]
    run_until(lambda: len(ended) == 20)
    assert [ended[pid] for pid in pids] == [[(number, None)] for number in range(20)]


def test_ending_descendants_tells_of_children(loop: Loop, own_children: None) -> None:
    ended: list[int] = []
    pid = processes.spawn(["sleep", "300"], env={"PATH": "/usr/bin:/bin"})
    loop.on_child(pid, ended.append)
    assert loop.end_descendants() == []
    assert [processes.decode_status(status) for status in ended] == [(None, signal.SIGKILL)]


def test_programs_of_others_are_not_in_its_way(loop: Loop) -> None:
    """subprocess waits for its own children while the loop reaps; neither hangs."""
    assert subprocess.run(["true"], check=False).returncode == 0
