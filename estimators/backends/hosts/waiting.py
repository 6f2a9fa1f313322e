"""Wait for an event of a host that may end before the event happens."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

from estimators.backends.hosts.provider import HostError

T = TypeVar("T")


async def unless(over: asyncio.Future[HostError], what: Awaitable[T]) -> T:
    """Return the result of ``what``. If ``over`` is done before ``what``, raise the error in ``over``.

    In the second case, a coroutine ``what`` is cancelled and has ended when this function returns. A future ``what`` is
    not cancelled, because it has other owners.

    Raises:
        HostError: ``over`` is done. The result of ``over`` is the raised error.
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
