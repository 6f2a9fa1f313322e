"""Shaped links between network namespaces: what is planned, what is left behind, and that links are slower."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import links
from estimators.backends.docker.links import ShapedLink


def test_a_process_that_has_ended_has_no_start() -> None:
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", "input()"], stdin=subprocess.PIPE)
    assert links._start_of(process.pid) is not None
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert links._start_of(process.pid) is None, "a zombie"
    process.communicate()
    assert links._start_of(process.pid) is None


# --- for real ---


@pytest.fixture
def namespaces() -> None:
    """Skip where there are none; in CI there must be."""
    why = links.refusal()
    if why is None:
        try:
            with links.made(links.plan(1), ShapedLink(rate=10_000_000)):
                return
        except links.Unavailable as error:
            why = str(error)
    pytest.skip(why)


@pytest.mark.usefixtures("namespaces")
def test_a_shaped_link_is_slower_and_nothing_is_left() -> None:
    with links.made(links.plan(2)) as planned:
        unshaped = links.transfer(planned, 0.2)
        links.shape(planned, ShapedLink(rate=10_000_000))
        shaped = links.transfer(planned, 0.2)
        assert set(planned.names()) <= set(links._existing())
    # A busy machine slows both down; what waits in the bucket at the start goes at once.
    assert shaped < 3 * 10e6 / 8
    assert unshaped > 5 * shaped
    assert not set(planned.names()) & set(links._existing())


_WAIT = """
import subprocess, time
from benchmarks import links

with links.made(links.plan(1)) as planned:
    inside = subprocess.Popen(planned.inside(0, ["sleep", "600"]), stdout=subprocess.DEVNULL)
    while not links._run(["ip", "netns", "pids", planned.host(0)]):
        time.sleep(0.01)
    print(planned.host(0), inside.pid, flush=True)
    time.sleep(600)
"""


@pytest.mark.usefixtures("namespaces")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_ended_leaves_nothing(number: signal.Signals) -> None:
    """SIGTERM: it tidies up. SIGKILL: the next run does, with what still runs in there."""
    root = Path(links.__file__).parent.parent
    run = subprocess.Popen(
        [sys.executable, "-c", _WAIT], cwd=root, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(root)},
    )  # fmt: skip
    assert run.stdout is not None
    try:
        name, pid = run.stdout.readline().split()
        run.send_signal(number)
        assert run.wait(30) == (128 + number if number == signal.SIGTERM else -number)
    finally:
        run.kill()
        run.wait()
        run.stdout.close()
    if number == signal.SIGKILL:
        assert name in links._existing()
        with links.made(links.plan(1)):
            pass
    assert name not in links._existing()
    assert links._start_of(int(pid)) is None
