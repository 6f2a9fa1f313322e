"""What a dispatcher that is reached by ssh keeps open."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from container.system.asyncio_loop import AsyncioLoop
from estimators.backends.dispatchers.ssh import SshDispatcher


class Followed:
    """A dispatcher whose program on the machine is this test: two pipes in place of ssh.

    Attributes:
        input: What the program would read.
        output: Where the program would write.
        closed: Whether the connection was closed.
    """

    def __init__(self, loop: AsyncioLoop, monkeypatch: pytest.MonkeyPatch) -> None:
        self.dispatcher = SshDispatcher(loop, "node-1", {})
        self.closed = False
        self.input, theirs = os.pipe()
        os.set_blocking(self.input, False)
        read, self.output = os.pipe()

        async def start(*words: str) -> tuple[Any, Any]:
            connection = SimpleNamespace(ended="", close=lambda: setattr(self, "closed", True))
            return connection, SimpleNamespace(input=theirs, output=read, complaint="")

        monkeypatch.setattr(self.dispatcher, "_start", start)

    async def follow(self, have: dict[str, Any]) -> None:
        async for _ in self.dispatcher.follow("job-1", have):
            pass

    def end(self) -> None:
        """Read what the program would read, until its end. An end of the pipe that is still open is an error."""
        while os.read(self.input, 1 << 20):
            pass
        with pytest.raises(BrokenPipeError):
            os.write(self.output, b"x")
        os.close(self.input)
        os.close(self.output)


@pytest.fixture
def followed(asyncio_loop: AsyncioLoop, home: Path, monkeypatch: pytest.MonkeyPatch) -> Followed:
    return Followed(asyncio_loop, monkeypatch)


def test_following_that_is_cancelled_at_its_start_closes_everything(
    asyncio_loop: AsyncioLoop, followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = asyncio_loop.connect_write_pipe

    async def cancelled(*arguments: Any) -> Any:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return await connect(*arguments)

    async def run() -> None:
        monkeypatch.setattr(asyncio_loop, "connect_write_pipe", cancelled)
        with pytest.raises(asyncio.CancelledError):
            await followed.follow({})
        await asyncio.sleep(0)  # the transport closes the pipe in the loop's next turn

    asyncio_loop.run(run())
    assert followed.closed
    followed.end()


def test_the_end_of_following_does_not_wait_until_the_machine_reads(
    asyncio_loop: AsyncioLoop, followed: Followed
) -> None:
    async def run() -> None:
        os.write(followed.output, b'{"op": "end"}\n')
        await followed.follow({"names": "x" * 1_000_000})  # more than the pipe holds
        await asyncio.sleep(0)

    asyncio_loop.run(run())
    assert followed.closed
    followed.end()


def test_following_ends_after_the_connection_to_write_on_has_broken(
    asyncio_loop: AsyncioLoop, followed: Followed
) -> None:
    """As when ssh is killed: what was not written is lost, and the reason is told from what can still be read."""
    os.close(followed.input)

    async def run() -> None:
        following = asyncio.ensure_future(followed.follow({}))
        while (writer := followed.dispatcher._writer) is None or not writer.is_closing():
            await asyncio.sleep(0)
        await asyncio.sleep(0)  # the transport forgets its loop in the next turn
        os.write(followed.output, b'{"op": "end"}\n')
        await following

    asyncio_loop.run(run())
    assert followed.closed
    os.close(followed.output)
