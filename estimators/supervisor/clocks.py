"""How long a job has run, over all of its attempts: what ``max_run`` and the bill are about. Pure."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class RunClock:
    """The spans in which a job's hosts ran, in seconds on one clock.

    Attributes:
        spans: Begin and end of those that are over.
        since: The begin of the one that is not, or None while no host runs.
    """

    spans: tuple[tuple[float, float], ...] = ()
    since: float | None = None

    def started(self, now: float) -> RunClock:
        """Count the hosts as running from now on; nothing changes when they do already."""
        return self if self.since is not None else dataclasses.replace(self, since=now)

    def stopped(self, now: float) -> RunClock:
        """They run no more."""
        if self.since is None:
            return self
        return RunClock((*self.spans, (self.since, max(now, self.since))))

    def ran(self, now: float) -> float:
        """For how long, in all."""
        return sum(end - begin for begin, end in self.stopped(now).spans)

    def current(self, now: float) -> float:
        """Return how long the span lasts that is not over; 0 when all are."""
        return max(0.0, now - self.since) if self.since is not None else 0.0
