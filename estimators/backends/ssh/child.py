"""Processes that the loop follows: ssh's, and those that use it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

from container.system import processes
from container.system.loop import Loop

#: How much of what ssh complains of is kept, in bytes.
KEPT = 16 << 10
_READ_SIZE = 1 << 18


class Child:
    """A process that the loop follows: ssh's, or one that uses it.

    Args:
        loop: The loop.
        argv: Its command.
        on_output: Takes what it prints; None: it prints to one of ``descriptors``.
        on_end: Called with its exit status and what it complained of.
        keeps_input: Whether it gets an input that stays open until :meth:`kill`.
        source: What it reads: a file, or bytes.
        descriptors: Its standard input and output, if they are given.

    Attributes:
        pid: The process; 0 if it could not be started.
        errors: What it has complained of.
    """

    def __init__(
        self,
        loop: Loop,
        argv: Sequence[str],
        on_output: Callable[[bytes], object] | None,
        on_end: Callable[[int, str], None],
        *,
        keeps_input: bool = False,
        source: Path | bytes | None = None,
        descriptors: tuple[int, int] | None = None,
    ) -> None:
        self._loop = loop
        self._on_end = on_end
        self.errors = bytearray()
        self._input = -1
        self._pending = memoryview(b"")
        self._status: int | None = None
        self._open: set[int] = set()
        self.pid = 0
        errors_read, errors_write = os.pipe()
        output_read, output_write = os.pipe() if descriptors is None else (-1, descriptors[1])
        stdin: int | None = None
        try:
            if descriptors is not None:
                stdin = descriptors[0]
            elif isinstance(source, Path):
                stdin = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
            elif keeps_input or source is not None:
                stdin, self._input = os.pipe()
            self.pid = processes.spawn(
                argv, env=os.environ, stdin=stdin, stdout=output_write, stderr=errors_write, new_group=True
            )
        except OSError as error:
            for fd in (errors_read, output_read, self._input):
                if fd >= 0:
                    os.close(fd)
            self._input = -1
            text = f"{error.filename}: {error.strerror}"
            if isinstance(error, FileNotFoundError) and shutil.which("ssh") is None:
                text = "ssh is not installed on this machine; install it (apt-get install openssh-client)"
            loop.call_later(0, lambda: on_end(255, text))
            return
        finally:
            os.close(errors_write)
            if descriptors is None:
                os.close(output_write)
                if stdin is not None:
                    os.close(stdin)
        loop.on_child(self.pid, self._exited)
        self._follow(errors_read, self._complain)
        if on_output is not None and descriptors is None:
            self._follow(output_read, on_output)
        if isinstance(source, bytes):
            os.set_blocking(self._input, False)
            self._pending = memoryview(source)
            self._write()

    def _complain(self, data: bytes) -> None:
        self.errors += data
        del self.errors[:-KEPT]

    def _follow(self, fd: int, take: Callable[[bytes], object]) -> None:
        os.set_blocking(fd, False)
        self._open.add(fd)

        def read() -> None:
            try:
                data = os.read(fd, _READ_SIZE)
            except BlockingIOError:
                return
            if data:
                take(data)
                return
            self._open.discard(fd)
            self._loop.remove_reader(fd)
            os.close(fd)
            self._tell()

        self._loop.add_reader(fd, read)

    def _write(self) -> None:
        try:
            while self._pending:
                self._pending = self._pending[os.write(self._input, self._pending) :]
        except BlockingIOError:
            self._loop.add_writer(self._input, self._write)
            return
        except OSError:  # it reads no more
            pass
        self.close_input()

    def close_input(self) -> None:
        """End what it reads."""
        if self._input >= 0:
            self._loop.remove_writer(self._input)
            os.close(self._input)
            self._input = -1

    def _exited(self, status: int) -> None:
        self._status = status
        self.close_input()
        self._tell()

    def _tell(self) -> None:
        """Tell the end when all that was printed has been read."""
        if self._status is not None and not self._open:
            code, number = processes.decode_status(self._status)
            self._on_end(code if code is not None else 128 + (number or 0), self.errors.decode(errors="replace"))

    def kill(self) -> None:
        """End it."""
        self.close_input()
        if self._status is None and self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
