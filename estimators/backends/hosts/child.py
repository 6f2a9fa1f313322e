"""Programs that the supervisor runs beside itself, and speaks with over pipes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence

from container.system import processes
from container.system.asyncio_loop import AsyncioLoop

#: The longest line that a program may print, and how much of its standard error is kept, in bytes.
_LONGEST_LINE, _KEPT = 1 << 24, 16 << 10


class ChildProcess:
    """A process, with our ends of its pipes.

    Args:
        loop: The supervisor's loop.
        argv: The command.
        env: The variables; default: those of this process.
        cwd: The working directory.
        stdin: A descriptor that it reads; default: a pipe.
        pass_fds: Descriptors that it inherits.
        protected: The processes that nobody kills, to which it belongs while it runs. It has a session of its own, and
            ends by itself when its input does. A program without this argument is killed when this process ends.
        logs_errors: Whether its standard error is this process's, which is the supervisor's log; default: it is kept.

    Attributes:
        pid: Its number.
        input: The descriptor that writes to its standard input; -1 if ``stdin`` was given.
        output: The descriptor that reads its standard output. It belongs to the caller, as ``input`` does.
        errors: The last 16 KiB of its standard error, up to now.
        ended: Its wait status, in the future.

    Raises:
        OSError: it could not be started.
    """

    def __init__(
        self,
        loop: AsyncioLoop,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: int | None = None,
        pass_fds: Sequence[int] = (),
        protected: set[int] | None = None,
        logs_errors: bool = False,
    ) -> None:
        self._protected = protected
        self._lines: tuple[asyncio.StreamReader, asyncio.BaseTransport] | None = None
        self.errors = bytearray()
        self.ended: asyncio.Future[int] = loop.create_future()
        self.output, output = os.pipe()
        theirs = [output]
        ours = errors = None
        if not logs_errors:
            ours, errors = os.pipe()
            theirs.append(errors)
        self.input = -1
        if stdin is None:
            stdin, self.input = os.pipe()
            theirs.append(stdin)
        try:
            self.pid = processes.spawn(
                argv,
                env=os.environ if env is None else env,
                cwd=cwd,
                stdin=stdin,
                stdout=output,
                stderr=errors,
                pass_fds=pass_fds,
                death_signal=signal.SIGKILL if protected is None else 0,
                new_session=protected is not None,
                new_group=True,
            )
        except OSError:
            self.close()
            if ours is not None:
                os.close(ours)
            raise
        finally:
            for fd in theirs:
                os.close(fd)
        if protected is not None:
            protected.add(self.pid)
        loop.on_child(self.pid, self._exited)
        self._complaining = loop.start(self._keep_errors(ours))

    def _exited(self, status: int) -> None:
        if self._protected is not None:
            self._protected.discard(self.pid)
        self.ended.set_result(status)

    async def _keep_errors(self, fd: int | None) -> None:
        if fd is None:
            return
        reader, _ = await _reader_of(fd)
        while data := await reader.read(_KEPT):
            self.errors += data
            del self.errors[:-_KEPT]

    @property
    def complaint(self) -> str:
        """Return the last line of its standard error; "" if it has written nothing there."""
        lines = self.errors.decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else ""

    def send(self, data: bytes) -> None:
        """Write to its standard input, which it reads at once: there is no need to wait in the loop."""
        with contextlib.suppress(OSError):  # its end is told by what it prints
            while data:
                data = data[os.write(self.input, data) :]

    async def line(self) -> bytes:
        """Return the next line that it prints.

        Raises:
            EOFError: there is none: it has ended, perhaps within a line.
        """
        line = await (await self._output()).readline()
        if not line.endswith(b"\n"):
            raise EOFError
        return line

    async def rest(self) -> bytes:
        """Return all that it prints until its end."""
        return await (await self._output()).read()

    async def _output(self) -> asyncio.StreamReader:
        if self._lines is None:
            fd, self.output = self.output, -1  # the reader's from now on, also if this wait is cancelled
            self._lines = await _reader_of(fd)
        return self._lines[0]

    async def wait(self) -> int:
        """Return its exit status when all that it wrote to its standard error was read; 128 and more for a signal."""
        await asyncio.wait((self._complaining, self.ended))
        code, number = processes.decode_status(self.ended.result())
        return code if code is not None else 128 + (number or 0)

    def kill(self) -> None:
        """End it."""
        if not self.ended.done():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def close_input(self) -> None:
        """Close the descriptor of its standard input; once."""
        if self.input >= 0:
            os.close(self.input)
            self.input = -1

    def close(self) -> None:
        """Close the descriptors, unless somebody else has taken them."""
        self.close_input()
        if self._lines is not None:
            self._lines[1].close()
        elif self.output >= 0:
            os.close(self.output)
            self.output = -1


def in_memory(data: bytes) -> int:
    """Return a descriptor that reads some bytes: more than a pipe takes at once. The caller closes it."""
    fd = os.memfd_create("input")
    with open(fd, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


async def _reader_of(fd: int) -> tuple[asyncio.StreamReader, asyncio.BaseTransport]:
    """Return a reader of a descriptor, and what closes it; it is closed at its end, too."""
    reader = asyncio.StreamReader(limit=_LONGEST_LINE)
    pipe = os.fdopen(fd, "rb", buffering=0)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    return reader, transport
