"""Interrupts are counted, wake the wait, and go back to what they were."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from estimators.client.interrupts import Interrupts


@pytest.fixture(autouse=True)
def default_handler() -> object:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_wakes_the_wait_and_raises_nothing() -> None:
    with Interrupts() as interrupts:
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        start = time.monotonic()
        interrupts.wait(10)
        assert time.monotonic() - start < 5
        assert interrupts.count == 1
        os.kill(os.getpid(), signal.SIGINT)
        interrupts.wait(0)
        assert interrupts.count == 2
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_of_the_programs_own_is_left_alone() -> None:
    def own(number: int, frame: object) -> None:
        pass

    signal.signal(signal.SIGINT, own)
    with Interrupts():
        assert signal.getsignal(signal.SIGINT) is own


def test_another_thread_changes_nothing() -> None:
    seen: list[object] = []

    def enter() -> None:
        with Interrupts() as interrupts:
            interrupts.wait(0)
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]


def test_a_descriptor_ends_the_wait_and_a_broken_pipe_is_told() -> None:
    read_end, write_end = os.pipe()
    with Interrupts() as interrupts:
        start = time.monotonic()
        interrupts.wait(0.05, read_end, watch=write_end)
        os.write(write_end, b"x")
        interrupts.wait(10, read_end, watch=write_end)
        os.close(read_end)
        with pytest.raises(BrokenPipeError):
            interrupts.wait(10, watch=write_end)
        assert time.monotonic() - start < 5
    os.close(write_end)


def test_no_descriptor_is_left_open() -> None:
    before = os.listdir("/proc/self/fd")
    for _ in range(10):
        with Interrupts() as interrupts:
            interrupts.wait(0)
    assert os.listdir("/proc/self/fd") == before
