"""Processes that the loop follows: ssh's, and those that use it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import shutil
import signal
from collections.abc import Callable, Sequence

from container.system import processes
from container.system.asyncio_loop import AsyncioLoop, gather

#: How much of what ssh complains of is kept, in bytes.
KEPT = 16 << 10
_READ_SIZE = 1 << 18
#: The wait status of a process that could not be started: exit status 255, as of an ssh that fails.
_NOT_STARTED = 255 << 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finished:
    """How a command ended.

    Attributes:
        code: Its exit status; 255 also when ssh itself failed.
        output: What it printed.
        errors: What it wrote to its standard error, the last 16 KiB.
    """

    code: int
    output: bytes
    errors: str

    @property
    def last_line(self) -> str:
        """Return its last words, as the reason of its failure."""
        lines = (self.errors.strip() or self.output.decode(errors="replace").strip()).splitlines()
        return lines[-1] if lines else f"exit status {self.code}"


async def readable(loop: AsyncioLoop, fd: int) -> None:
    """Wait until a descriptor can be read, or is at its end."""
    ready = asyncio.Event()
    loop.add_reader(fd, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(fd)


async def read(loop: AsyncioLoop, fd: int) -> bytes:
    """Return what comes next from a pipe; nothing at its end."""
    await readable(loop, fd)
    return os.read(fd, _READ_SIZE)


class Child:
    """Follow a process: ssh's, or one that uses it.

    Args:
        loop: The loop.
        argv: Its command.
        stdin: What it reads; None: nothing.
        stdout: Where it prints; None: what it prints is kept.
        on_line: Takes each line that it prints, which is not kept then.

    Attributes:
        pid: The process; 0 if it could not be started.
        errors: What it has complained of.
    """

    def __init__(
        self,
        loop: AsyncioLoop,
        argv: Sequence[str],
        *,
        stdin: int | None = None,
        stdout: int | None = None,
        on_line: Callable[[str], None] | None = None,
    ) -> None:
        self._loop = loop
        self._on_line = on_line
        self.pid = 0
        self.errors = bytearray()
        self._output = bytearray()
        self._exited = loop.create_future()
        errors, errors_there = os.pipe()
        output, output_there = os.pipe() if stdout is None else (None, stdout)
        try:
            self.pid = processes.spawn(
                argv, env=os.environ, stdin=stdin, stdout=output_there, stderr=errors_there, new_group=True
            )
            loop.on_child(self.pid, self._exited.set_result)
        except OSError as error:
            text = f"{error.filename}: {error.strerror}"
            if isinstance(error, FileNotFoundError) and shutil.which("ssh") is None:
                text = "ssh is not installed on this machine. Install it (apt-get install openssh-client)"
            self.errors += text.encode()
            self._exited.set_result(_NOT_STARTED)
        finally:
            os.close(errors_there)
            if stdout is None:
                os.close(output_there)
        self._life = loop.start(self._follow(errors, output))

    async def _follow(self, errors: int, output: int | None) -> None:
        """Read all that it prints, and wait for its end."""
        reading = [self._read(errors, self._complain)]
        if output is not None:
            reading.append(self._read(output, self._print))
        await gather(*reading)
        await asyncio.wait([self._exited])

    async def _read(self, fd: int, take: Callable[[bytes], None]) -> None:
        try:
            while data := await read(self._loop, fd):
                take(data)
        finally:
            os.close(fd)

    def _complain(self, data: bytes) -> None:
        self.errors += data
        del self.errors[:-KEPT]

    def _print(self, data: bytes) -> None:
        self._output += data
        while self._on_line is not None and b"\n" in self._output:
            line, _, self._output = self._output.partition(b"\n")
            self._on_line(line.decode("utf-8", "replace"))

    async def wait(self) -> Finished:
        """Return how it has ended, when all that it printed has been read."""
        await asyncio.wait([self._life])
        code, number = processes.decode_status(self._exited.result())
        return Finished(
            code=code if code is not None else 128 + (number or 0),
            output=bytes(self._output),
            errors=self.errors.decode(errors="replace"),
        )

    def kill(self) -> None:
        """End it."""
        if self.pid and not self._exited.done():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


async def run(
    loop: AsyncioLoop, argv: Sequence[str], source: bytes = b"", on_line: Callable[[str], None] | None = None
) -> Finished:
    """Run a process to its end; one whose end is not awaited any more is killed.

    Args:
        loop: The loop.
        argv: Its command.
        source: What it reads.
        on_line: Takes each line that it prints.
    """
    with os.fdopen(os.memfd_create("input"), "w+b") as file:
        file.write(source)
        file.seek(0)
        child = Child(loop, argv, stdin=file.fileno(), on_line=on_line)
    try:
        return await child.wait()
    finally:
        child.kill()
