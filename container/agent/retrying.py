"""Define how often failed network requests are repeated, and how long to wait before each retry."""

from __future__ import annotations

import random

from container.contract.frozen import dataclass


@dataclass(frozen=True, kw_only=True)
class Backoff:
    """The number of attempts after transient failures, and the waits between them.

    Attributes:
        attempts: Maximum number of successive attempts that transfer no data.
        first_s: The wait before the second attempt, in seconds. Each later wait is twice as long as the previous wait.
        longest_s: The longest wait, in seconds.
    """

    attempts: int = 10
    first_s: float = 0.1
    longest_s: float = 5.0

    def delay(self, failures: int) -> float:
        """Return the number of seconds to wait after ``failures`` successive failures.

        The wait is randomly shortened by up to half, so that not all hosts retry at the same time.
        """
        longest = min(self.first_s * 2.0 ** min(failures - 1, 30), self.longest_s)
        return longest * (0.5 + random.random() / 2)


#: The values for all requests. If a server refuses connections, all attempts together take about 15 s. If a server is
#: silent, the time limit of each attempt is added.
BACKOFF = Backoff()
