"""Run callbacks for descriptors, timers, signals and child processes in one thread: the event loop.

The processes on a job's hosts (agent, toolkit and rank wrapper) run :class:`SelectorLoop`. A job starts dozens of these
processes, and importing asyncio would delay each of them. The supervisor runs asyncio
(:mod:`container.system.asyncio_loop`). Code that runs on both loops uses only the methods that both loops have.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import selectors
import signal
import time
from collections.abc import Callable, Collection
from typing import Protocol, TypeAlias

from container.system import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from container.system.asyncio_loop import AsyncioLoop

#: epoll takes at most 2^31 milliseconds, which is less than the longest max_run.
_LONGEST_WAIT = 3600.0

#: Either of the two loops.
Loop: TypeAlias = "SelectorLoop | AsyncioLoop"


class Timer(Protocol):
    """A pending call. See :meth:`SelectorLoop.call_later`."""

    def cancel(self) -> None:
        """Cancel the call. If the call was already made, do nothing."""


class Children:
    """The child processes of this process. A loop reports their ends to callbacks."""

    def __init__(self) -> None:
        self._children: dict[int, Callable[[int], None]] = {}

    def on_child(self, pid: int, callback: Callable[[int], None]) -> None:
        """Call ``callback`` with the wait status when a child process ends. Call this method before the loop runs again
        after the child's start. Otherwise the loop may collect the wait status without calling ``callback``.
        """
        self._children[pid] = callback

    def reap(self) -> None:
        """Collect the wait statuses of child processes that have ended, and call their callbacks."""
        self._tell(processes.reap()[0])

    def end_descendants(self, *, spare: Collection[int] = ()) -> list[int]:
        """Kill the descendants of this process, and call the callbacks of the children among them.

        Args:
            spare: The pids of children that are not killed. The descendants of these children are not killed either.

        Returns:
            The pids of descendants that still exist. Normally the list is empty.
        """
        left, ended = processes.end_descendants(spare=spare)
        self._tell(ended)
        return left

    def _tell(self, ended: dict[int, int]) -> None:
        for pid, status in ended.items():
            if (callback := self._children.pop(pid, None)) is not None:
                callback(status)


class _Call:
    """A pending call of :class:`SelectorLoop`."""

    __slots__ = ("callback", "cancelled")

    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        """Cancel the call. See :meth:`Timer.cancel`."""
        self.cancelled = True


class SelectorLoop(Children):
    """The small event loop of the processes on a job's hosts. Its methods have the names of asyncio's methods.

    Callbacks run in the thread that runs the loop. Because the loop handles signals, the thread must be the main
    thread.
    """

    def __init__(self) -> None:
        super().__init__()
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, _Call]] = []
        self._order = itertools.count()
        self._signals: dict[int, _Call] = {}
        self._stopped = False
        self._wakeup_read, self._wakeup_write = os.pipe()
        os.set_blocking(self._wakeup_read, False)
        os.set_blocking(self._wakeup_write, False)
        signal.set_wakeup_fd(self._wakeup_write, warn_on_full_buffer=False)
        self.add_signal_handler(signal.SIGCHLD, self.reap)
        self.add_reader(self._wakeup_read, self._on_wakeup)

    def close(self) -> None:
        """Close the descriptors that the loop has opened. The loop cannot run afterwards."""
        signal.set_wakeup_fd(-1)
        self._selector.close()
        os.close(self._wakeup_read)
        os.close(self._wakeup_write)

    # --- descriptors ---

    def add_reader(self, fd: int, callback: Callable[[], object]) -> None:
        """Call ``callback`` whenever ``fd`` is readable or has reached its end."""
        self._set(fd, selectors.EVENT_READ, _Call(callback))

    def remove_reader(self, fd: int) -> None:
        """Undo :meth:`add_reader`. If ``fd`` has no reader, do nothing."""
        self._set(fd, selectors.EVENT_READ, None)

    def add_writer(self, fd: int, callback: Callable[[], object]) -> None:
        """Call ``callback`` whenever ``fd`` is writable."""
        self._set(fd, selectors.EVENT_WRITE, _Call(callback))

    def remove_writer(self, fd: int) -> None:
        """Undo :meth:`add_writer`. If ``fd`` has no writer, do nothing."""
        self._set(fd, selectors.EVENT_WRITE, None)

    def _set(self, fd: int, event: int, call: _Call | None) -> None:
        known = self._selector.get_map().get(fd)
        calls: dict[int, _Call] = {} if known is None else known.data
        if (replaced := calls.pop(event, None)) is not None:
            replaced.cancel()
        if call is not None:
            calls[event] = call
        if known is None and calls:
            self._selector.register(fd, sum(calls), calls)
        elif known is not None and calls:
            self._selector.modify(fd, sum(calls), calls)
        elif known is not None:
            self._selector.unregister(fd)

    # --- time and signals ---

    def call_later(self, seconds: float, callback: Callable[[], object], /) -> Timer:
        """Call ``callback`` once, ``seconds`` from now."""
        call = _Call(callback)
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._order), call))
        return call

    def add_signal_handler(self, number: int, callback: Callable[[], object], /) -> None:
        """Call ``callback`` in the loop's thread when a signal arrives."""
        self._signals[number] = _Call(callback)
        signal.signal(number, _noticed)

    def _on_wakeup(self) -> None:
        with contextlib.suppress(BlockingIOError):
            numbers = os.read(self._wakeup_read, 4096)
            for number in sorted(dict.fromkeys(numbers), key=lambda number: number != signal.SIGCHLD):
                if number in self._signals:
                    self._signals[number].callback()

    # --- running ---

    def stop(self) -> None:
        """Make :meth:`run` return after the current callbacks."""
        self._stopped = True

    def run(self) -> None:
        """Run the loop until :meth:`stop` is called."""
        self._stopped = False
        while not self._stopped:
            self.run_once()

    def run_once(self, timeout: float | None = None) -> None:
        """Wait for events once, and handle them.

        Args:
            timeout: The longest time to wait, in seconds. If None or more than an hour, one hour.
        """
        timeout = _LONGEST_WAIT if timeout is None else min(timeout, _LONGEST_WAIT)
        while self._timers and self._timers[0][2].cancelled:
            heapq.heappop(self._timers)
        if self._timers:
            timeout = min(timeout, max(0.0, self._timers[0][0] - time.monotonic()))
        due = [
            call
            for key, events in self._selector.select(timeout)
            for event, call in list(key.data.items())
            if events & event
        ]
        for call in due:
            if not call.cancelled:  # an earlier callback may have cancelled this call
                call.callback()
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            call = heapq.heappop(self._timers)[2]
            if not call.cancelled:
                call.callback()


def _noticed(number: int, frame: object) -> None:
    """Do nothing. This handler is needed because the wake-up descriptor reports only signals that have a handler."""
