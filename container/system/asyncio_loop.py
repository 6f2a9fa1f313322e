"""asyncio as the loop of the supervisor and of its helpers: coroutines, beside the methods of :class:`Loop`."""

from __future__ import annotations

import asyncio
import selectors
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from container.system.loop import Loop, Timer

T = TypeVar("T")

#: How long tasks that are cancelled at the end may take to clean up, in seconds.
_CLEAN_UP_S = 2.0


async def gather(*coroutines: Coroutine[Any, Any, T]) -> list[T]:
    """Run coroutines at once, and return their results in order.

    If one fails, or the caller is cancelled, the others are cancelled, and have ended when this returns.
    """
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


async def within(seconds: float, coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that may take so many seconds; it has ended when this returns.

    Before Python 3.12, ``asyncio.wait_for`` loses a cancellation that comes in the same moment as the result.

    Raises:
        asyncio.TimeoutError: it takes longer.
    """
    task = asyncio.ensure_future(coroutine)
    try:
        await asyncio.wait([task], timeout=seconds)
        if not task.done():
            raise asyncio.TimeoutError
        return task.result()
    finally:
        task.cancel()
        await asyncio.wait([task])


class AsyncioLoop(Loop):
    """Run coroutines and callbacks on an asyncio loop.

    An exception that nobody expects, in a callback or in a task of :meth:`start`, ends :meth:`run`, which raises it: a
    supervisor with an unknown fault must not go on.

    Args:
        selector: Waits for descriptors; default: the system's best.
    """

    def __init__(self, selector: selectors.BaseSelector | None = None) -> None:
        super().__init__()
        self._loop = asyncio.SelectorEventLoop(selector)
        self._loop.set_exception_handler(self._handle)
        self._signals: set[int] = set()
        self.on_signal(signal.SIGCHLD, self.reap)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._fault: BaseException | None = None
        self._runs = False  # in :meth:`run`, which raises a fault

    # --- coroutines ---

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run until a coroutine has ended, and return its result."""
        task = self._loop.create_task(main)
        task.add_done_callback(self._stop)
        self._runs = True
        try:
            self._loop.run_forever()
        finally:  # it was interrupted, perhaps
            self._runs = False
            task.remove_done_callback(self._stop)
        if self._fault is not None:
            fault, self._fault = self._fault, None
            task.cancel()
            raise fault
        return task.result()

    def start(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine beside everything else, as a task."""
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def future(self) -> asyncio.Future[Any]:
        """Return a new future of this loop."""
        return self._loop.create_future()

    def soon(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` as soon as the callbacks that are due have been called."""
        self._loop.call_soon(callback)

    def _stop(self, task: asyncio.Task[Any]) -> None:
        self._loop.stop()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _handle(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if "task" in context or "future" in context:
            return  # its owner has ended, with another reason
        self._fail(error if error is not None else RuntimeError(context["message"]))

    def _fail(self, error: BaseException) -> None:
        self._fault = self._fault or error
        if self._runs:
            self._loop.stop()

    def close(self) -> None:
        """Cancel all that still runs, let it clean up, and close the loop."""
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.remove_done_callback(self._ended)
            task.cancel()
        if tasks:
            self._loop.run_until_complete(asyncio.wait(tasks, timeout=_CLEAN_UP_S))
        for number in self._signals:  # it closes first what a signal that comes meanwhile is written to
            self._loop.remove_signal_handler(number)
        self._loop.close()

    # --- see :class:`Loop` ---

    def add_reader(self, fd: int, callback: Callable[[], None]) -> None:
        """See :meth:`Loop.add_reader`."""
        self._loop.add_reader(fd, callback)

    def remove_reader(self, fd: int) -> None:
        """See :meth:`Loop.remove_reader`."""
        self._loop.remove_reader(fd)

    def add_writer(self, fd: int, callback: Callable[[], None]) -> None:
        """See :meth:`Loop.add_writer`."""
        self._loop.add_writer(fd, callback)

    def remove_writer(self, fd: int) -> None:
        """See :meth:`Loop.remove_writer`."""
        self._loop.remove_writer(fd)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """See :meth:`Loop.call_later`."""
        return self._loop.call_later(seconds, callback)

    def on_signal(self, number: int, callback: Callable[[], None]) -> None:
        """See :meth:`Loop.on_signal`."""
        self._signals.add(number)
        self._loop.add_signal_handler(number, callback)
