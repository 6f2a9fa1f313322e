"""Compute how often SageMaker is polled, with pure functions."""

from __future__ import annotations

from container.contract.frozen import dataclass

#: CloudWatch Logs allows an account 25 GetLogEvents calls per second. One job uses a fifth of these calls.
_STREAMS_PER_SECOND = 5.0
_LONGEST_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Delays between polls, in seconds.

    Attributes:
        poll_s: The shortest delay.
        hosts: The number of log streams.
    """

    poll_s: float = 2.0
    hosts: int = 1

    def next_look(self, quiet_s: float, failures: int = 0) -> float:
        """Return the delay until the logs are polled again, in seconds.

        Args:
            quiet_s: The seconds since the last new log line or change of the status.
            failures: The number of consecutive failed polls.
        """
        if failures:
            return min(self.poll_s * 2.0 ** min(failures, 16), _LONGEST_S)
        least = max(self.poll_s, self.hosts / _STREAMS_PER_SECOND if self.poll_s >= 1.0 else 0.0)
        return min(least * (1.0 + quiet_s / 60.0), 5.0 * least)

    def describe_after(self, quiet_s: float) -> float:
        """Return how old the job's description may become until it is requested again, in seconds.

        Args:
            quiet_s: The seconds since the last new log line or change of the status.
        """
        return min(self.poll_s * (1.0 + quiet_s / 30.0), max(15.0, self.poll_s))

    @property
    def settle_s(self) -> float:
        """Return for how many seconds after a job's end CloudWatch is polled for more lines.

        CloudWatch makes lines readable only after a delay.
        """
        return 2.5 * self.poll_s
