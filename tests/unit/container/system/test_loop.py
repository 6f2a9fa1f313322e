"""The event loop: descriptors, timers, signals, children."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest

from container.system.loop import SelectorLoop


def test_timers_come_in_their_order(loop: SelectorLoop, run_until: Callable[..., None]) -> None:
    said: list[str] = []
    loop.call_later(0.5, lambda: said.append("late"))
    loop.call_later(0.0, lambda: said.append("first"))
    loop.call_later(0.0, lambda: said.append("second"))
    cancelled = loop.call_later(0.01, lambda: said.append("never"))
    cancelled.cancel()
    cancelled.cancel()
    loop.call_later(0.02, lambda: loop.call_later(0.0, lambda: said.append("of a timer")))
    start = time.monotonic()
    run_until(lambda: len(said) == 4)
    assert said == ["first", "second", "of a timer", "late"]
    assert time.monotonic() - start >= 0.03


def test_a_timer_that_cancels_another_of_the_same_moment(loop: SelectorLoop) -> None:
    said: list[str] = []
    second = None

    def first() -> None:
        said.append("first")
        assert second is not None
        second.cancel()

    loop.call_later(0.0, first)
    second = loop.call_later(0.0, lambda: said.append("second"))
    for _ in range(3):
        loop.run_once(0.01)
    assert said == ["first"]


@pytest.mark.parametrize("seconds", [30 * 86400.0, 1e12, float("inf")])
def test_a_timer_in_a_far_future_waits(seconds: float, loop: SelectorLoop, run_until: Callable[..., None]) -> None:
    """max_run may be 28 days, which is more milliseconds than epoll takes."""
    loop.call_later(seconds, lambda: pytest.fail("too early"))
    read, write = os.pipe()
    seen: list[bytes] = []
    loop.add_reader(read, lambda: seen.append(os.read(read, 10)))
    os.write(write, b"x")
    loop.run_once()
    assert seen == [b"x"]
    loop.remove_reader(read)
    os.close(read)
    os.close(write)


def test_readers_and_writers(loop: SelectorLoop, run_until: Callable[..., None]) -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    sent = 0
    got = bytearray()
    data = bytes(range(256)) * 2000

    def on_writable() -> None:
        nonlocal sent
        sent += os.write(write, data[sent : sent + 100_000])
        if sent == len(data):
            loop.remove_writer(write)
            os.close(write)

    def on_readable() -> None:
        chunk = os.read(read, 50_000)
        got.extend(chunk)
        if not chunk:
            loop.remove_reader(read)
            os.close(read)
            loop.stop()

    loop.add_writer(write, on_writable)
    loop.add_reader(read, on_readable)
    loop.run()
    assert bytes(got) == data
    loop.remove_reader(read)  # harmless
    loop.remove_writer(write)


def test_a_callback_may_remove_another_that_is_due(loop: SelectorLoop) -> None:
    pairs = [os.pipe() for _ in range(2)]
    called: list[int] = []

    def on_readable(number: int) -> None:
        called.append(number)
        for read, _ in pairs:
            loop.remove_reader(read)

    for number, (read, write) in enumerate(pairs):
        loop.add_reader(read, lambda number=number: on_readable(number))  # type: ignore[misc]
        os.write(write, b"x")
    for _ in range(3):
        loop.run_once(0.01)
    assert len(called) == 1
    for read, write in pairs:
        os.close(read)
        os.close(write)


def test_signals_are_called_in_the_loop(loop: SelectorLoop, run_until: Callable[..., None]) -> None:
    said: list[str] = []
    loop.add_signal_handler(signal.SIGUSR1, lambda: said.append("usr1"))
    os.kill(os.getpid(), signal.SIGUSR1)
    assert said == []
    run_until(lambda: said)
    assert said == ["usr1"]


def test_stop_ends_run_after_the_current_callbacks(loop: SelectorLoop) -> None:
    said: list[str] = []
    loop.call_later(0.0, lambda: (said.append("a"), loop.stop()))  # type: ignore[func-returns-value]
    loop.call_later(0.0, lambda: said.append("b"))
    loop.run()
    assert said == ["a", "b"]
