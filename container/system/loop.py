"""The event loop: descriptors, timers, signals and children, in one thread.

The processes on a job's hosts (agent, toolkit, rank wrapper) run :class:`SelectorLoop`: they are started by the dozen,
and for each of them the import of asyncio would be paid again. The supervisor runs asyncio
(:mod:`container.system.asyncio_loop`), which offers the same methods to the code that both sides share.
"""

from __future__ import annotations

import abc
import contextlib
import heapq
import itertools
import os
import selectors
import signal
import time
from collections.abc import Callable, Collection
from typing import Protocol

from container.system import processes

#: epoll takes at most 2^31 milliseconds, which is less than the longest max_run.
_LONGEST_WAIT = 3600.0


class Timer(Protocol):
    """A pending call; see :meth:`Loop.call_later`."""

    def cancel(self) -> None:
        """Cancel the call. Has no effect after the call."""


class Loop(abc.ABC):
    """Run callbacks in the thread that runs the loop, which must be the main thread (signals)."""

    def __init__(self) -> None:
        self._children: dict[int, Callable[[int], None]] = {}

    @abc.abstractmethod
    def close(self) -> None:
        """Close what the loop has opened itself; it cannot run any more."""

    # --- descriptors ---

    @abc.abstractmethod
    def add_reader(self, fd: int, callback: Callable[[], None]) -> None:
        """Call ``callback`` whenever ``fd`` can be read or is at its end."""

    @abc.abstractmethod
    def remove_reader(self, fd: int) -> None:
        """Undo :meth:`add_reader`. Has no effect if there is no reader."""

    @abc.abstractmethod
    def add_writer(self, fd: int, callback: Callable[[], None]) -> None:
        """Call ``callback`` whenever ``fd`` can be written."""

    @abc.abstractmethod
    def remove_writer(self, fd: int) -> None:
        """Undo :meth:`add_writer`. Has no effect if there is no writer."""

    # --- time and signals ---

    @abc.abstractmethod
    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call ``callback`` once, ``seconds`` from now."""

    @abc.abstractmethod
    def on_signal(self, number: int, callback: Callable[[], None]) -> None:
        """Call ``callback`` in the loop when the signal arrives."""

    # --- children ---

    def on_child(self, pid: int, callback: Callable[[int], None]) -> None:
        """Call ``callback`` with the wait status when the child ends. Register before the loop runs on."""
        self._children[pid] = callback

    def reap(self) -> None:
        """Collect ended children now and call their callbacks."""
        processes.reap(self._reaped)

    def end_descendants(self, *, spare: Collection[int] = ()) -> list[int]:
        """Kill everything below this process but the spared trees; the callbacks of known children are called."""
        return processes.end_descendants(spare=spare, reaped=self._reaped)

    def _reaped(self, pid: int, status: int) -> None:
        callback = self._children.pop(pid, None)
        if callback is not None:
            callback(status)


class _Call:
    """A pending call of :class:`SelectorLoop`."""

    __slots__ = ("callback", "cancelled", "when")

    def __init__(self, when: float, callback: Callable[[], None]) -> None:
        self.when = when
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        """See :meth:`Timer.cancel`."""
        self.cancelled = True


class SelectorLoop(Loop):
    """The small loop of the processes on a job's hosts."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, _Call]] = []
        self._order = itertools.count()
        self._readers: dict[int, Callable[[], None]] = {}
        self._writers: dict[int, Callable[[], None]] = {}
        self._signals: dict[int, Callable[[], None]] = {}
        self._stopped = False
        self._wakeup_read, self._wakeup_write = os.pipe()
        os.set_blocking(self._wakeup_read, False)
        os.set_blocking(self._wakeup_write, False)
        signal.set_wakeup_fd(self._wakeup_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _noticed)
        self.add_reader(self._wakeup_read, self._on_wakeup)

    def close(self) -> None:
        """See :meth:`Loop.close`."""
        signal.set_wakeup_fd(-1)
        self._selector.close()
        os.close(self._wakeup_read)
        os.close(self._wakeup_write)

    # --- descriptors ---

    def add_reader(self, fd: int, callback: Callable[[], None]) -> None:
        """See :meth:`Loop.add_reader`."""
        self._readers[fd] = callback
        self._update(fd)

    def remove_reader(self, fd: int) -> None:
        """See :meth:`Loop.remove_reader`."""
        if self._readers.pop(fd, None) is not None:
            self._update(fd)

    def add_writer(self, fd: int, callback: Callable[[], None]) -> None:
        """See :meth:`Loop.add_writer`."""
        self._writers[fd] = callback
        self._update(fd)

    def remove_writer(self, fd: int) -> None:
        """See :meth:`Loop.remove_writer`."""
        if self._writers.pop(fd, None) is not None:
            self._update(fd)

    def _update(self, fd: int) -> None:
        events = (selectors.EVENT_READ if fd in self._readers else 0) | (
            selectors.EVENT_WRITE if fd in self._writers else 0
        )
        registered = fd in self._selector.get_map()
        if events and registered:
            self._selector.modify(fd, events)
        elif events:
            self._selector.register(fd, events)
        elif registered:
            self._selector.unregister(fd)

    # --- time ---

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """See :meth:`Loop.call_later`."""
        timer = _Call(time.monotonic() + seconds, callback)
        heapq.heappush(self._timers, (timer.when, next(self._order), timer))
        return timer

    # --- signals ---

    def on_signal(self, number: int, callback: Callable[[], None]) -> None:
        """See :meth:`Loop.on_signal`."""
        self._signals[number] = callback
        signal.signal(number, _noticed)

    def _on_wakeup(self) -> None:
        with contextlib.suppress(BlockingIOError):
            numbers = os.read(self._wakeup_read, 4096)
            if signal.SIGCHLD in numbers:
                self.reap()
            for number in dict.fromkeys(numbers):
                if number in self._signals:
                    self._signals[number]()

    # --- running ---

    def stop(self) -> None:
        """Have :meth:`run` return after the current callbacks."""
        self._stopped = True

    def run(self) -> None:
        """Run until :meth:`stop`."""
        self._stopped = False
        while not self._stopped:
            self.run_once()

    def run_once(self, timeout: float | None = None) -> None:
        """Wait for something (at most ``timeout`` seconds, and an hour) and handle it."""
        now = time.monotonic()
        timeout = _LONGEST_WAIT if timeout is None else min(timeout, _LONGEST_WAIT)
        while self._timers and self._timers[0][2].cancelled:
            heapq.heappop(self._timers)
        if self._timers:
            timeout = min(timeout, max(0.0, self._timers[0][0] - now))
        for key, events in self._selector.select(timeout):
            if events & selectors.EVENT_READ and key.fd in self._readers:
                self._readers[key.fd]()
            if events & selectors.EVENT_WRITE and key.fd in self._writers:
                self._writers[key.fd]()
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            timer = heapq.heappop(self._timers)[2]
            if not timer.cancelled:
                timer.callback()


def _noticed(number: int, frame: object) -> None:
    """Do nothing: the wake-up descriptor works only while there is a Python-level handler."""
