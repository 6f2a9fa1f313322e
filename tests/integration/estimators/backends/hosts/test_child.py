"""A program beside the supervisor."""

from __future__ import annotations

import asyncio
import os
import sys

import pytest

from container.system.asyncio_loop import AsyncioLoop
from estimators.backends.hosts.child import ChildProcess


def test_a_wait_for_its_output_that_is_cancelled_leaves_no_descriptor_to_close_twice() -> None:
    loop = AsyncioLoop()

    async def main() -> None:
        child = ChildProcess(loop, [sys.executable, "-c", "input()"])
        waiting = asyncio.ensure_future(child.line())
        await asyncio.sleep(0)  # it has begun to connect to the pipe
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        taken = [os.open(os.devnull, os.O_RDONLY) for _ in range(8)]  # among them the number that was closed
        child.close()
        for fd in taken:
            os.close(fd)  # none of them was closed with the child
        await child.wait()

    try:
        loop.run(main())
    finally:
        loop.close()
