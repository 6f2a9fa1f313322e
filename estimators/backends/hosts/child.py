"""Start helper programs of the supervisor, and communicate with these programs over pipes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence

from container.system import files, processes
from container.system.asyncio_loop import AsyncioLoop

#: The longest line that a program may print, and the size of the kept end of its standard error, in bytes.
_LONGEST_LINE, _KEPT = 1 << 24, 16 << 10


class ChildProcess:
    """A program that the supervisor has started, and the pipes between the supervisor and the program.

    Args:
        loop: The supervisor's event loop.
        argv: The command.
        env: The environment variables of the program. The default is this process's environment.
        cwd: The working directory of the program.
        stdin: The file descriptor of the program's standard input. The default is a pipe.
        pass_fds: The file descriptors that the program inherits.
        protected: The pids of the processes that the supervisor does not kill. If the set is given, it contains the
            program's pid while the program runs. The program then has a session of its own, and has to exit when its
            standard input ends. If None, the program is killed when this process ends.
        logs_errors: Whether the program's standard error is written to the supervisor's log. If False, standard error
            is stored in ``errors``.

    Attributes:
        pid: The program's process id.
        input: The file descriptor that writes to the program's standard input, or -1 if ``stdin`` was given.
        output: The file descriptor that reads the program's standard output. The caller has to close ``output`` and
            ``input``.
        errors: The last 16 KiB of the program's standard error until now.
        ended: A future whose result is the program's wait status.

    Raises:
        OSError: the program could not be started.
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
        """Return the last line of the program's standard error. Return "" if standard error is empty."""
        lines = self.errors.decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else ""

    def send(self, data: bytes) -> None:
        """Write data to the program's standard input. This call blocks, but only briefly, because the program reads its
        input at once.
        """
        with contextlib.suppress(OSError):  # if the program has ended, the output reports the end
            files.write_all(self.input, data)

    async def line(self) -> bytes:
        """Return the next line that the program prints.

        Raises:
            EOFError: the program has ended before it has printed a whole line.
        """
        line = await (await self._output()).readline()
        if not line.endswith(b"\n"):
            raise EOFError
        return line

    async def rest(self) -> bytes:
        """Wait until the program's standard output ends, and return the output that was not read yet."""
        return await (await self._output()).read()

    async def _output(self) -> asyncio.StreamReader:
        if self._lines is None:
            fd, self.output = self.output, -1  # from now on, the reader closes it, even if this coroutine is cancelled
            self._lines = await _reader_of(fd)
        return self._lines[0]

    async def wait(self) -> int:
        """Wait until the program has ended and its standard error was read, and return its exit code.

        The exit code is 128 plus the signal's number if a signal has killed the program.
        """
        await asyncio.wait((self._complaining, self.ended))
        code, number = processes.decode_status(self.ended.result())
        return code if code is not None else 128 + (number or 0)

    def kill(self) -> None:
        """Send SIGKILL to the program if the program is still running."""
        if not self.ended.done():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def close_input(self) -> None:
        """Close the file descriptor of the program's standard input, if the descriptor is open."""
        if self.input >= 0:
            os.close(self.input)
            self.input = -1

    def close(self) -> None:
        """Close the file descriptors of the program's standard input and standard output."""
        self.close_input()
        if self._lines is not None:
            self._lines[1].close()
        elif self.output >= 0:
            os.close(self.output)
            self.output = -1


def in_memory(data: bytes) -> int:
    """Return a file descriptor from which the given bytes can be read. The caller closes the descriptor.

    The bytes are in memory, so they may be more than a pipe can hold.
    """
    fd = os.memfd_create("input")
    with open(fd, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


async def _reader_of(fd: int) -> tuple[asyncio.StreamReader, asyncio.BaseTransport]:
    """Return a reader of a file descriptor, and the transport with which the descriptor can be closed.

    The reader and the transport are closed when the input ends.
    """
    reader = asyncio.StreamReader(limit=_LONGEST_LINE)
    pipe = os.fdopen(fd, "rb", buffering=0)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    return reader, transport
