"""A loop whose clock the test moves, without descriptors: timers of one moment run in their order."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable


class Timer:
    """See :class:`container.system.loop.Timer`."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class MovedLoop:
    """The timers of a loop.

    Attributes:
        now: Its time, in seconds from 0.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(callback)
        heapq.heappush(self._timers, (self.now + seconds, next(self._order), timer))
        return timer

    def advance(self, seconds: float = 0.0) -> None:
        """Let everything happen that is due within so many seconds."""
        until = self.now + seconds
        while self._timers and self._timers[0][0] <= until:
            self.now, _, timer = heapq.heappop(self._timers)
            if not timer.cancelled:
                timer.callback()
        self.now = until
