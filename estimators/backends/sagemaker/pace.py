"""How often SageMaker is asked. Pure."""

from __future__ import annotations

import dataclasses

#: CloudWatch Logs answers 25 GetLogEvents a second to an account; a job takes a fifth of that.
_STREAMS_PER_SECOND = 5.0
_LONGEST_S = 60.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pace:
    """Waits between questions, in seconds.

    Attributes:
        poll_s: The shortest.
        hosts: How many log streams there are to ask for.
    """

    poll_s: float = 2.0
    hosts: int = 1

    def next_look(self, quiet_s: float, failures: int = 0) -> float:
        """The wait until the logs are looked at again.

        Args:
            quiet_s: How long nothing has come.
            failures: How often in a row SageMaker could not be asked.
        """
        if failures:
            return min(self.poll_s * 2.0 ** min(failures, 16), _LONGEST_S)
        least = max(self.poll_s, self.hosts / _STREAMS_PER_SECOND if self.poll_s >= 1.0 else 0.0)
        return min(least * (1.0 + quiet_s / 60.0), 5.0 * least)

    def describe_after(self, quiet_s: float) -> float:
        """How old the last description may be."""
        return min(self.poll_s * (1.0 + quiet_s / 30.0), max(15.0, self.poll_s))

    @property
    def settle_s(self) -> float:
        """How long after a job's end CloudWatch is asked whether more has come: it takes a moment to take logs in."""
        return 2.5 * self.poll_s
