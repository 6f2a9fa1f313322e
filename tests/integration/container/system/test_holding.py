"""Points at which a test holds a process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from holding import held

from container.system.holding import hold

COMES = "from container.system.holding import hold\nhold('a.point')\nprint('went on', flush=True)"


def start(text: str = COMES) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)


def test_who_comes_stands_until_it_is_let_go() -> None:
    with held("a.point") as point:
        hold("another.point")  # others pass
        with start() as first, start() as second:
            there = {point.await_there(), point.await_there()}
            assert there == {first.pid, second.pid}
            point.let_go(first.pid)
            assert first.communicate()[0] == "went on\n"
            assert second.poll() is None
            point.let_go()
            assert second.communicate()[0] == "went on\n"
        with start() as late:
            assert late.communicate()[0] == "went on\n"


def test_who_is_held_goes_on_when_the_test_is_gone() -> None:
    """Of a test that is killed nothing hangs."""
    program = (
        f"import subprocess, sys\nfrom holding import held\nwith held('a.point') as point:\n"
        f"    process = subprocess.Popen([sys.executable, '-c', {COMES!r}])\n"
        "    assert point.await_there() == process.pid\n"
        "    print('there', flush=True)\n    sys.stdin.read()\n"
    )
    support = str(Path(__file__).resolve().parents[3] / "support")
    test = subprocess.Popen(
        [sys.executable, "-c", f"import sys; sys.path[:0] = [{support!r}]\n{program}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert test.stdout is not None
    assert test.stdout.readline() == "there\n"
    test.kill()
    assert test.stdout.read() == "went on\n"
    test.wait()
