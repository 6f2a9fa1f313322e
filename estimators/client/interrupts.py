"""Count interrupts, such as Ctrl-C, while this process waits for a job.

By default, Python would raise KeyboardInterrupt at an arbitrary point of the program.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

#: The active :class:`Interrupts` contexts of the main thread. The innermost context is last.
_waiting: list[Interrupts] = []


def ask_to_end() -> None:
    """Interrupt the waiting for a job as the first Ctrl-C does. Handlers of signals such as SIGTERM call this function.

    The function does not send SIGINT to this process, because shells start background processes with SIGINT ignored.
    After the first interrupt, a call has no effect, because closing a terminal or terminating a process group often
    sends two signals.

    Raises:
        KeyboardInterrupt: this process is not waiting for a job.
    """
    if not _waiting:
        raise KeyboardInterrupt
    if not _waiting[-1].count:
        _waiting[-1]._note()


class Interrupts:
    """A context in which SIGINT is counted and wakes :meth:`wait`. No KeyboardInterrupt is raised.

    The caller can therefore stop a job in an orderly way, and a second interrupt does not disturb the stop. The context
    does nothing in threads other than the main thread. A SIGINT handler that the program has installed stays in place.
    If this handler raises KeyboardInterrupt, the caller must increment :attr:`count`.

    Attributes:
        count: The number of interrupts.
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
        """Wait until a descriptor can be read, an interrupt arrives, or ``timeout`` seconds have passed.

        Args:
            timeout: The maximum time to wait, in seconds.
            descriptors: Descriptors that wake the method when they can be read.
            watch: The descriptor of a pipe to which the caller writes. The method only detects that the reader has
                closed this pipe.

        Raises:
            BrokenPipeError: the reader of ``watch`` has closed the pipe.
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
