"""Wait for a result, or for the end of the host or program that would produce the result."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

from estimators.backends.hosts.provider import HostError

T = TypeVar("T")


async def unless(over: asyncio.Future[HostError], what: Awaitable[T]) -> T:
    """Return the result of ``what``. If ``over`` is done, raise the result of ``over`` instead.

    If ``over`` is done before a coroutine ``what``, the coroutine is cancelled, and has ended when this function
    returns. A future ``what`` is not cancelled, because other tasks may wait for it, too.

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
