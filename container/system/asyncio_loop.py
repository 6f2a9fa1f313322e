"""Run the supervisor, which is the process that owns a job, and its helper programs on asyncio."""

from __future__ import annotations

import asyncio
import selectors
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

from container.system.loop import Children

T = TypeVar("T")

#: The time that cancelled tasks have to clean up when the loop is closed, in seconds.
_CLEAN_UP_S = 2.0


async def gather(*coroutines: Coroutine[Any, Any, T]) -> list[T]:
    """Run coroutines concurrently, and return their results in the order of the arguments.

    If a coroutine fails or the caller is cancelled, all other coroutines are cancelled. When this function returns, all
    coroutines have ended.
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
    """Run a coroutine, and return its result. Cancel the coroutine after a time limit.

    The coroutine has ended when this function returns. ``asyncio.wait_for`` is not used, because before Python 3.12 it
    loses a cancellation that arrives together with the result.

    Args:
        seconds: The time limit in seconds.
        coroutine: The coroutine to run.

    Raises:
        asyncio.TimeoutError: the coroutine takes longer than the limit.
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


class AsyncioLoop(Children, asyncio.SelectorEventLoop):
    """An asyncio loop that runs coroutines and callbacks.

    An unexpected exception in a callback, or in a task of :meth:`start`, stops :meth:`run`. The exception is then
    raised by :meth:`run`, because a supervisor with an unknown fault must not continue.

    Args:
        selector: The selector that waits for descriptors. If None, the best selector of the operating system.
    """

    def __init__(self, selector: selectors.BaseSelector | None = None) -> None:
        Children.__init__(self)
        asyncio.SelectorEventLoop.__init__(self, selector)
        self.set_exception_handler(self._handle)
        self.add_signal_handler(signal.SIGCHLD, self.reap)
        self._started: set[asyncio.Task[Any]] = set()
        self._fault: BaseException | None = None
        self._runs = False  # whether :meth:`run` is running; if so, run() raises a fault of any task

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run the loop until a coroutine has ended, and return the coroutine's result.

        Raises:
            BaseException: an exception of the coroutine, or an unexpected exception of a callback or of a task of
                :meth:`start`.
        """
        task = self.create_task(main)
        task.add_done_callback(self._main_ended)
        self._runs = True
        try:
            self.run_forever()
        finally:  # the call may have been interrupted
            self._runs = False
            task.remove_done_callback(self._main_ended)
        if self._fault is not None:
            fault, self._fault = self._fault, None
            task.cancel()
            raise fault
        return task.result()

    def start(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a coroutine as a concurrent task, and return the task."""
        task = self.create_task(coroutine)
        self._started.add(task)
        task.add_done_callback(self._ended)
        return task

    def _main_ended(self, task: asyncio.Task[Any]) -> None:
        self.stop()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._started.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _handle(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if "task" in context or "future" in context:
            return  # the code that awaited the task has ended for a different reason
        self._fail(error if error is not None else RuntimeError(context["message"]))

    def _fail(self, error: BaseException) -> None:
        self._fault = self._fault or error
        if self._runs:
            self.stop()

    def close(self) -> None:
        """Cancel all running tasks, wait up to 2 seconds until they have cleaned up, and close the loop."""
        if self.is_closed():
            return
        tasks = asyncio.all_tasks(self)
        for task in tasks:
            task.remove_done_callback(self._ended)
            task.cancel()
        if tasks:
            self.run_until_complete(asyncio.wait(tasks, timeout=_CLEAN_UP_S))
        for number in signal.valid_signals():  # asyncio would close the handlers' socket before it removes the handlers
            self.remove_signal_handler(number)
        super().close()
