"""Measure for how long a job's hosts have run in all attempts together, for ``max_run`` and the bill. Pure."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class RunClock:
    """The time spans in which a job's hosts ran. All times are in seconds on one clock.

    Attributes:
        spans: The start and the end of each completed span.
        since: The start of the current span. None while no host runs.
    """

    spans: tuple[tuple[float, float], ...] = ()
    since: float | None = None

    def started(self, now: float) -> RunClock:
        """Return the clock with a span that begins now. Return the clock unchanged if the hosts already run."""
        return self if self.since is not None else dataclasses.replace(self, since=now)

    def stopped(self, now: float) -> RunClock:
        """Return the clock with the current span completed."""
        if self.since is None:
            return self
        return RunClock((*self.spans, (self.since, max(now, self.since))))

    def ran(self, now: float) -> float:
        """Return the total time that the hosts have run, in seconds."""
        return sum(end - begin for begin, end in self.stopped(now).spans)

    def current(self, now: float) -> float:
        """Return the length of the current span, in seconds. Return 0 if no host runs."""
        return max(0.0, now - self.since) if self.since is not None else 0.0
