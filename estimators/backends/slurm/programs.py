"""Programs that the supervisor speaks with over pipes, and that live until its end, and a little longer."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence

from container.system import processes
from container.system.loop import Loop

#: In bytes; the nodes of an allocation are in one.
_LONGEST_LINE = 1 << 24


def start(
    loop: Loop, argv: Sequence[str], env: Mapping[str, str], protected: set[int], *, errors: bool = False
) -> list[int]:
    """Start a program in a session of its own, which nobody kills: it ends by itself when its input does.

    Args:
        loop: The supervisor's loop.
        argv: The command.
        env: Its variables.
        protected: Where its pid stands as long as it runs.
        errors: Whether what it says to its standard error is of interest; else that goes where the supervisor's goes.

    Returns:
        Descriptors: of its input, of its output, and of its errors if these are of interest.

    Raises:
        OSError: it could not be started.
    """
    stdin, write = os.pipe()
    outputs = [os.pipe() for _ in range(2 if errors else 1)]
    ours = [write, *(read for read, _ in outputs)]
    theirs = [stdin, *(output for _, output in outputs)]
    try:
        pid = processes.spawn(
            argv,
            env=env,
            cwd="/",
            stdin=theirs[0],
            stdout=theirs[1],
            stderr=theirs[2] if errors else None,
            death_signal=0,
            new_session=True,
        )
    except OSError:
        close(ours)
        raise
    finally:
        close(theirs)
    protected.add(pid)
    loop.on_child(pid, lambda status: protected.discard(pid))
    return ours


async def lines(fd: int) -> AsyncIterator[bytes]:
    """Yield the whole lines that come from a descriptor until its end; close it then."""
    reader = asyncio.StreamReader(limit=_LONGEST_LINE)
    loop, pipe = asyncio.get_running_loop(), os.fdopen(fd, "rb", buffering=0)
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    try:
        async for line in reader:
            if line.endswith(b"\n"):  # else it was killed as it wrote
                yield line
    finally:
        transport.close()


def close(fds: Sequence[int]) -> None:
    """Close descriptors."""
    for fd in fds:
        os.close(fd)
