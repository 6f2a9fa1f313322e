"""Waiting for something of a host that may end before."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

from estimators.backends.hosts.provider import HostError

T = TypeVar("T")


async def unless(over: asyncio.Future[HostError], what: Awaitable[T]) -> T:
    """Return the result of something, unless something else is over before.

    A coroutine that is waited for has ended when this returns; a future has other owners, and is left alone.

    Raises:
        HostError: the result of ``over``.
    """
    task = asyncio.ensure_future(what)
    either: set[asyncio.Future[Any]] = {task, over}
    try:
        if not task.done():
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if over.done():
            raise over.result()
        return task.result()
    finally:
        if task is not what:
            task.cancel()
            await asyncio.wait({task})
