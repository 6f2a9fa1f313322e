"""Retry with back-off: one policy for everything that goes over the network."""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Backoff:
    """How often and how soon to retry after a transient failure.

    Attributes:
        attempts: How often without any progress.
        first_s: The wait before the second attempt, in seconds; each further one is twice as long.
        longest_s: The longest wait, in seconds.
    """

    attempts: int = 10
    first_s: float = 0.1
    longest_s: float = 5.0

    def delay(self, failures: int) -> float:
        """Return the seconds to wait after so many failures in a row, with jitter: hosts must not all come back at
        once.
        """
        longest = min(self.first_s * 2.0 ** min(failures - 1, 30), self.longest_s)
        return longest * (0.5 + random.random() / 2)


#: A quarter of a minute of a server that refuses; each attempt's own wait comes on top where it is silent.
BACKOFF = Backoff()


def retrying(
    call: Callable[[], T],
    passes: Callable[[Exception], bool],
    *,
    backoff: Backoff | None = None,
) -> T:
    """Call until it works.

    Args:
        call: What to do.
        passes: Whether a failure may pass when it is tried again.
        backoff: How often and how long; the default is :data:`BACKOFF`.
    """
    backoff = backoff or BACKOFF
    failures = 0
    while True:
        try:
            return call()
        except Exception as error:
            failures += 1
            if not passes(error) or failures >= backoff.attempts:
                raise
        time.sleep(backoff.delay(failures))
