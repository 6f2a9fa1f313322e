"""Run blocking calls in threads, and pass their results to the event loop."""

from __future__ import annotations

import contextlib
import functools
import os
import queue
import threading
import weakref
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from container.system.loop import Loop

T = TypeVar("T")


class Background:
    """Run blocking calls in daemon threads, and pass their results to the loop's thread.

    Args:
        loop: The loop that receives the results.
    """

    _of_loops: ClassVar[weakref.WeakKeyDictionary[Loop, Background]] = weakref.WeakKeyDictionary()

    @classmethod
    def of(cls, loop: Loop) -> Background:
        """Return the instance that all users of a loop share.

        An instance is shared because it uses two descriptors, and a job may have many hosts.
        """
        found = cls._of_loops.get(loop)
        if found is None:
            found = cls._of_loops[loop] = cls(loop)
        return found

    def __init__(self, loop: Loop) -> None:
        self._results: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        for fd in (self._read, self._write):  # threads may use the pipe until nothing refers to this object any more
            weakref.finalize(self, os.close, fd)
        loop.add_reader(self._read, self._deliver)

    def run(self, work: Callable[[], T], then: Callable[[T], object], failed: Callable[[Exception], object]) -> None:
        """Call ``work`` in a thread. Then call a function in the loop: ``then`` with the result, or ``failed`` with the
        exception.
        """

        def body() -> None:
            try:
                value = work()
            except Exception as error:  # noqa: BLE001 - passed to the loop's thread
                self.tell(functools.partial(failed, error))
            else:
                self.tell(functools.partial(then, value))

        threading.Thread(target=body, daemon=True).start()

    async def call(self, work: Callable[[], T]) -> T:
        """Call ``work`` in a thread, and return the result. The loop must be able to run coroutines.

        If the caller is cancelled, it does not wait for the thread, and the result is dropped.
        """
        import asyncio  # not needed by the processes on the hosts

        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def succeed(value: T) -> None:
            if not result.done():
                result.set_result(value)

        def fail(error: Exception) -> None:
            if not result.done():
                result.set_exception(error)

        self.run(work, succeed, fail)
        return await result

    def tell(self, function: Callable[[], object]) -> None:
        """Call a function in the loop's thread. A call that runs in a thread can use this method to report progress."""
        self._results.put(function)
        with contextlib.suppress(OSError):  # the pipe is full: the loop is woken already
            os.write(self._write, b".")

    def _deliver(self) -> None:
        os.read(self._read, 4096)
        with contextlib.suppress(queue.Empty):
            while True:
                self._results.get_nowait()()
