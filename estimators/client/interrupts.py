"""Ctrl-C and a notebook's interrupt, counted instead of raised wherever the program happens to be."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

#: Who waits in the main thread, the innermost last.
_waiting: list[Interrupts] = []


def ask_to_end() -> None:
    """Do what a first Ctrl-C does; for handlers of signals that ask a process to end.

    SIGINT itself will not do: shells have it ignored by what they start in the background. Asking again changes
    nothing, since whoever closes a terminal or ends a group of processes often signals twice.

    Raises:
        KeyboardInterrupt: nobody waits for a job.
    """
    if not _waiting:
        raise KeyboardInterrupt
    if not _waiting[-1].count:
        _waiting[-1]._note()


class Interrupts:
    """While it is entered, SIGINT is counted and wakes :meth:`wait`; no KeyboardInterrupt is raised.

    So whoever waits can end a job in order, and a second interrupt cannot tear that apart. In other threads than the
    main one, and where the program has a SIGINT handler of its own, nothing is changed; a KeyboardInterrupt that such
    a handler raises has to be counted by hand (:attr:`count`).

    Attributes:
        count: How many interrupts there were.
    """

    def __init__(self) -> None:
        self.count = 0
        self._previous: Any = None
        self._read_end, self._write_end = -1, -1

    def __enter__(self) -> Interrupts:
        self._read_end, self._write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        if threading.current_thread() is threading.main_thread():
            _waiting.append(self)
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                self._previous = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self in _waiting:
            _waiting.remove(self)
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)
            self._previous = None
        read_end, write_end = self._read_end, self._write_end
        self._read_end, self._write_end = -1, -1
        os.close(read_end)
        os.close(write_end)

    def _note(self, number: int = signal.SIGINT, frame: FrameType | None = None) -> None:
        self.count += 1
        if self._write_end >= 0:
            with contextlib.suppress(BlockingIOError):
                os.write(self._write_end, b"!")

    def wait(self, timeout: float, *descriptors: int, watch: int | None = None) -> None:
        """Wait until a descriptor can be read, or an interrupt comes, at most ``timeout`` seconds.

        Args:
            timeout: In seconds.
            descriptors: Those to read from.
            watch: A descriptor to write to.

        Raises:
            BrokenPipeError: nobody will read what is written to ``watch``.
        """
        poll = select.poll()
        for descriptor in (self._read_end, *descriptors):
            if descriptor >= 0:
                poll.register(descriptor, select.POLLIN)
        if watch is not None:
            poll.register(watch, 0)  # errors are always reported
        for descriptor, _ in poll.poll(max(0, timeout) * 1000):
            if descriptor == self._read_end:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._read_end, 4096)
            elif descriptor == watch:
                raise BrokenPipeError("the reader of the output has closed the pipe")
