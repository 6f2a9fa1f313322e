"""Write the toolkit's output: the ranks' lines and events, in the format of :mod:`container.contract.wire`.

Writing never blocks the loop. Data that standard output does not accept is buffered. If too much data is buffered, the
ranks' pipes are not read until the buffer is smaller. A slow reader thus slows the ranks instead of filling the memory.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
from collections.abc import Callable

from container.contract import wire
from container.contract.messages import Decoder, Message, MessageError
from container.contract.texts import writable
from container.system.loop import Loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from container.toolkit.mpi.daemons import Words

_READ_SIZE = 1 << 18
_HIGH_WATER = 1 << 20
_LOW_WATER = 256 << 10
#: Size of the end of a process's output that is kept for its failure report, in bytes.
TAIL_SIZE = 64 << 10
#: Maximum size of an event in bytes.
_EVENT_LIMIT = 1 << 18


class Output:
    """Write lines to a descriptor without blocking the event loop.

    Args:
        loop: The event loop.
        fd: The descriptor, normally standard output.
    """

    def __init__(self, loop: Loop, fd: int = 1) -> None:
        self._loop = loop
        self._fd = _own_description(fd)
        os.set_blocking(self._fd, False)
        self._pending = bytearray()
        self._waiting = False
        self.paused: list[_Pipe] = []

    @property
    def congested(self) -> bool:
        """Return whether the buffer is so full that the ranks' pipes should not be read."""
        return len(self._pending) > _HIGH_WATER

    def write(self, data: bytes) -> None:
        """Write data now, or as soon as the descriptor accepts it."""
        self._pending += data
        if not self._waiting:
            self._flush()

    def event(self, event: wire.Event) -> None:
        """Write an event."""
        self.write(event.to_line())

    def say(self, host: str, text: str) -> None:
        """Write a message of the toolkit, line by line."""
        tag = wire.prefix(host, None).encode() + b" "
        self.write(b"".join(tag + line.encode("utf-8", "replace") + b"\n" for line in text.splitlines() or [""]))

    def drain(self, timeout: float = 5.0) -> None:
        """Write the buffered data before the process ends.

        Args:
            timeout: The longest time to wait whenever the reader accepts no data, in seconds.
        """
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        while self._pending and poll.poll(timeout * 1000):
            if not self._write_some():
                break

    def _flush(self) -> None:
        self._write_some()
        if self._pending and not self._waiting:
            self._waiting = True
            self._loop.add_writer(self._fd, self._flush)
        elif not self._pending and self._waiting:
            self._waiting = False
            self._loop.remove_writer(self._fd)
        if self.paused and len(self._pending) < _LOW_WATER:
            streams, self.paused = self.paused, []
            for stream in streams:
                stream.resume()

    def _write_some(self) -> bool:
        """Write as much buffered data as the descriptor accepts now. Return False if the reader has ended."""
        try:
            while self._pending:
                written = os.write(self._fd, memoryview(self._pending)[: 1 << 20])
                del self._pending[:written]
        except BlockingIOError:
            pass
        except OSError:
            self._pending.clear()  # the reader has ended; the lifeline ends this process
            return False
        return True


class _Pipe:
    """A pipe that is read as data arrives, except while the output is congested.

    Args:
        loop: The event loop.
        output: The output to which the data is finally written. While the output is congested, the pipe is not read.
        fd: The descriptor of the pipe's read end. This object closes it.
    """

    def __init__(self, loop: Loop, output: Output, fd: int) -> None:
        self._loop = loop
        self._output = output
        self._fd = fd
        self.ended = False
        os.set_blocking(fd, False)
        loop.add_reader(fd, self._on_readable)

    def resume(self) -> None:
        """Resume reading after congestion."""
        if not self.ended:
            self._loop.add_reader(self._fd, self._on_readable)

    def finish(self) -> None:
        """Read what the pipe contains, and close the pipe.

        Do not wait for the end of the pipe: descendants of the process may still have the write end open.
        """
        while not self.ended and self._read():
            pass
        self._close()

    def _on_readable(self) -> None:
        self._read()
        if self._output.congested and not self.ended:
            self._loop.remove_reader(self._fd)
            self._output.paused.append(self)

    def _read(self) -> bool:
        """Read the pipe once. Return False if there is no data at present, or the pipe has ended."""
        try:
            data = os.read(self._fd, _READ_SIZE)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._close()
            return False
        self._take(data)
        return True

    def _take(self, data: bytes) -> None:
        raise NotImplementedError

    def _close(self) -> None:
        if not self.ended:
            self.ended = True
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._is_over()

    def _is_over(self) -> None:
        """Handle the end of the pipe. :meth:`_close` calls this method after all data was handled."""


class OutputStream(_Pipe):
    """The output of one process. The output is read from a pipe and printed with a prefix. The end of the output is
    kept.

    Args:
        loop: The event loop.
        output: The output to which the lines are written.
        fd: The descriptor of the pipe's read end. The stream closes it.
        host: The host's name.
        process: The process's name.
        printed: A function that is called when the process has printed something. The function gets the complete lines,
            and the beginning of an incomplete line.
        words: The object that shortens the output of mpirun and its daemons. None for any other process.
    """

    def __init__(
        self,
        loop: Loop,
        output: Output,
        fd: int,
        host: str,
        process: str,
        *,
        printed: Callable[[list[bytes], bytes], None] | None = None,
        words: Words | None = None,
    ) -> None:
        self._printed = printed
        self._words = words
        self._tag = wire.prefix(host, process).encode()
        self._buffer = bytearray()
        self._tail = bytearray()
        super().__init__(loop, output, fd)

    @property
    def tail(self) -> bytes:
        """Return the end of the process's output, for a failure report."""
        return bytes(self._tail)

    def _take(self, data: bytes) -> None:
        self._buffer += data
        if self._words is None:
            self._keep(data)
        pieces = wire.split_pieces(self._buffer)
        if self._printed is not None:
            self._printed(pieces, bytes(self._buffer))
        self._print(pieces)

    def _keep(self, data: bytes) -> None:
        self._tail += data
        if len(self._tail) > 2 * TAIL_SIZE:
            del self._tail[:-TAIL_SIZE]

    def _print(self, pieces: list[bytes], *, final: bool = False) -> None:
        if self._words is not None:
            pieces = self._words.shorten(pieces, final)
            self._keep(b"".join(pieces))
        if pieces:
            self._output.write(b"".join(wire.encode_piece(self._tag, piece) for piece in pieces))

    def _is_over(self) -> None:
        """Print the remaining output, which has no terminator."""
        self._print(wire.split_pieces(self._buffer, final=True), final=True)


class EventStream(_Pipe):
    """The pipe for a rank's events. Data that is not an event is ignored, because any part of the script may have
    written it.

    Args:
        loop: The event loop.
        output: The output to which the events are finally written. While the output is congested, the pipe is not read.
        fd: The descriptor of the pipe's read end. The stream closes it.
        received: A function that is called with each event.
    """

    def __init__(self, loop: Loop, output: Output, fd: int, received: Callable[[Message], None]) -> None:
        self._received = received
        self._decoder = Decoder(_EVENT_LIMIT, key="kind")
        super().__init__(loop, output, fd)

    def _take(self, data: bytes) -> None:
        self._decoder.feed(data)
        while (event := self._next()) is not None:
            self._received(writable(event))

    def _next(self) -> Message | None:
        while True:
            with contextlib.suppress(MessageError):
                return self._decoder.take()


def _own_description(fd: int) -> int:
    """Open the pipe of ``fd`` again, and return the new descriptor. Non-blocking mode then does not affect other users
    of ``fd``. If ``fd`` cannot be opened again, return a duplicate.
    """
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    except OSError:
        sys.stdout.flush()
        return os.dup(fd)
