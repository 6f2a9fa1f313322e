"""Coroutines on a loop: limits of time, and what is left when one is interrupted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from container.system.asyncio_loop import AsyncioLoop, gather, within


def test_in_time_there_is_a_result_and_later_an_error(asyncio_loop: AsyncioLoop) -> None:
    assert asyncio_loop.run(within(60, asyncio.sleep(0, "done"))) == "done"
    ended: list[str] = []

    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("slow")

    with pytest.raises(asyncio.TimeoutError):
        asyncio_loop.run(within(0.01, slow()))
    assert ended == ["slow"]


def test_an_error_is_passed_on(asyncio_loop: AsyncioLoop) -> None:
    async def fails() -> None:
        raise ValueError("why")

    with pytest.raises(ValueError, match="why"):
        asyncio_loop.run(within(60, fails()))


def test_a_cancellation_in_the_moment_of_the_result_counts(asyncio_loop: AsyncioLoop) -> None:
    async def both() -> Any:
        event = asyncio.Event()
        task = asyncio.ensure_future(within(60, event.wait()))
        await asyncio.sleep(0.01)
        event.set()
        await asyncio.sleep(0)  # the event was seen, and its result is on its way
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled()

    assert asyncio_loop.run(both())


def test_what_runs_when_the_loop_is_interrupted_cleans_up_when_it_is_closed(asyncio_loop: AsyncioLoop) -> None:
    began: list[str] = []
    ended: list[str] = []

    async def wait(name: str) -> None:
        began.append(name)
        if len(began) == 2:
            asyncio_loop.call_soon(interrupt)
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            ended.append(name)

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asyncio_loop.run(gather(wait("one"), wait("other")))
    asyncio_loop.close()
    assert sorted(ended) == ["one", "other"]
