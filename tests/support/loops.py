"""A loop on which things are tried."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator

import pytest
from waiting import until

from container.system.asyncio_loop import AsyncioLoop
from container.system.loop import Loop, SelectorLoop

RunUntil = Callable[..., None]


@contextlib.contextmanager
def _handlers_restored() -> Iterator[None]:
    numbers = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def loop() -> Iterator[SelectorLoop]:
    """The loop of processes on hosts; the process's signal handlers are restored afterwards."""
    with _handlers_restored():
        one = SelectorLoop()
        yield one
        one.close()


@pytest.fixture
def asyncio_loop() -> Iterator[AsyncioLoop]:
    """The supervisor's loop; the process's signal handlers are restored afterwards."""
    with _handlers_restored():
        one = AsyncioLoop()
        yield one
        one.close()


@pytest.fixture
def run_until(loop: SelectorLoop) -> RunUntil:
    """Runs the loop until a condition holds, or fails."""

    def run(condition: Callable[[], object]) -> None:
        until(condition, between=lambda: loop.run_once(0.05))

    return run


@pytest.fixture
def own_children(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process adopts orphans, and ends what it has left behind; not what fixtures of the session have started."""
    from container.system import processes

    before = processes.children_by_parent().get(os.getpid(), [])
    end = loop.end_descendants
    monkeypatch.setattr(loop, "end_descendants", lambda *, spare=(): end(spare={*spare, *before}))
    processes._prctl(36, 1)
    yield
    with contextlib.suppress(ChildProcessError):
        loop.end_descendants()
    processes._prctl(36, 0)
