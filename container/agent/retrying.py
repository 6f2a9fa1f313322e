"""Retry with back-off: one policy for everything that goes over the network."""

from __future__ import annotations

import dataclasses
import random


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
