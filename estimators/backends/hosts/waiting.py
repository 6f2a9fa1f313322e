"""Wait for a result, or for the end of the host or program that would produce the result."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

from estimators.backends.hosts.provider import HostError

T = TypeVar("T")


async def unless(over: asyncio.Future[HostError], what: Awaitable[T]) -> T:
    """Wait for ``what``, and return its result. If ``over`` is done first, raise the result of ``over``, an error.

    In the second case, if ``what`` is a coroutine, it is cancelled, and has ended before the error is raised. If
    ``what`` is a future, it is not cancelled, because other tasks may wait for it, too.

    Raises:
        HostError: ``over`` is done. Its result is the raised error.
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
