"""Count the attempts of one job, and record how each attempt ended, how long it ran, and which hosts are available.

The module does no input or output. All times are arguments that the caller has measured on one clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from container.contract.failures import Cause, Failure
from container.contract.frozen import dataclass
from estimators.job.failure_policy import (
    Again,
    EndedBy,
    Ending,
    FailurePolicy,
    Final,
    PresentHosts,
    decide,
    with_attempts,
)

#: How often an attempt is started at most, if the ports of its servers are already in use each time.
_PORT_ATTEMPTS = 3

_AT_ONCE = Again()


@dataclass(frozen=True)
class NextAttempt:
    """The decision that another attempt follows.

    Attributes:
        until: The earliest time of the next attempt, in seconds on the caller's clock.
        ending: How the last attempt ended. None if the last attempt does not count as an attempt.
    """

    until: float
    ending: Ending | None


class Attempts:
    """The attempts of one job. The class counts the attempts and decides whether another attempt follows.

    Args:
        policy: The user's failure policy.
        hosts: All hosts of the job, in rank order.
        earlier: The ends of earlier attempts, which earlier supervisors of the job have recorded.
        number: The number of the first attempt.
    """

    def __init__(
        self, policy: FailurePolicy, hosts: tuple[str, ...], *, earlier: Iterable[Ending] = (), number: int = 0
    ) -> None:
        self.policy = policy
        self.fleet = PresentHosts(hosts=hosts)
        self.number = number
        self.hosts = hosts
        #: Hosts that are being taken away from this attempt after a notice.
        self.taken: list[str] = []
        #: Hosts that were taken away from this attempt without a notice.
        self.removed: set[str] = set()
        self.progressed = False
        self._earlier = tuple(earlier)  # reported, but not counted for the policy, because the user has resumed the job
        self._endings: list[Ending] = []
        self._port_attempts = 0
        self._ran = 0.0  # how long the hosts of earlier attempts ran, in seconds
        self._since: float | None = None  # when the hosts of this attempt were started

    # --- the course ---

    def begin(self, now: float) -> tuple[str, ...]:
        """Begin another attempt on the available hosts, and return the names of these hosts."""
        self.number += 1
        self.hosts = self.fleet.present(now)
        self.taken.clear()
        self.removed.clear()
        self.progressed = False
        return self.hosts

    def running(self, now: float) -> None:
        """Record that the attempt's hosts run. Further calls in the same attempt have no effect."""
        if self._since is None:
            self._since = now

    def ran(self, now: float) -> float:
        """Return for how long the job's hosts have run in all attempts together, in seconds."""
        return self._ran + (max(0.0, now - self._since) if self._since is not None else 0.0)

    def over(self, failure: Failure | None, now: float) -> NextAttempt | Failure:
        """Record an attempt that did not succeed, and decide whether another attempt follows.

        Args:
            failure: The failure that ended the attempt, or None. The failure is ignored if hosts were being taken away.
            now: The time at which the attempt's hosts ended.

        Returns:
            The earliest time of the next attempt, or the failure with which the job ends.
        """
        ran = self.ran(now)
        seconds, self._ran, self._since = ran - self._ran, ran, None
        if self.taken or failure is None:
            ending = self._ending(EndedBy.PREEMPTION, seconds, taken=tuple(self.taken))
            failure = None
        else:
            ending = self._ending(EndedBy.FAILURE, seconds, failure=failure)
            if failure.cause is Cause.PORT_TAKEN and self._port_attempts + 1 < _PORT_ATTEMPTS:
                self._port_attempts += 1
                return NextAttempt(now, None)
        self._port_attempts = 0
        self._endings.append(ending)
        decision = decide(self.policy, self._endings)
        if isinstance(decision, Final):
            return self._final(failure, decision.why)
        return self.wait(now, decision)

    def wait(self, now: float, decision: Again = _AT_ONCE) -> NextAttempt | Failure:
        """Return the earliest time at which the pause is over and enough hosts are available for the next attempt.

        If enough hosts will never be available, return the failure with which the job ends.

        Args:
            now: The current time.
            decision: The decision of the failure policy, which contains the pause. By default, there is no pause.
        """
        until = max(now + decision.pause_s, self.fleet.enough_at(self.least, now))
        if math.isinf(until):
            last = self._endings[-1] if self._endings else None
            return self._final(last.failure if last is not None else None, self._too_few(now))
        return NextAttempt(until, self._endings[-1] if self._endings else None)

    @property
    def least(self) -> int:
        """Return the least number of hosts that an attempt needs."""
        return min(self.policy.min_hosts or len(self.fleet.hosts), len(self.fleet.hosts))

    def to_list(self) -> list[dict[str, Any]]:
        """Return the endings of all attempts, for the record."""
        return [ending.to_dict() for ending in (*self._earlier, *self._endings)]

    # --- helpers ---

    def _ending(
        self, kind: EndedBy, seconds: float, *, failure: Failure | None = None, taken: tuple[str, ...] = ()
    ) -> Ending:
        return Ending(
            attempt=self.number,
            kind=kind,
            failure=failure,
            hosts=self.hosts,
            taken=taken,
            progressed=self.progressed,
            seconds=seconds,
        )

    def _final(self, failure: Failure | None, why: str) -> Failure:
        last = self._endings[-1] if self._endings else None
        if failure is None:
            taken = last.taken if last is not None else ()
            failure = Failure(
                cause=Cause.HOST_LOST,
                message=f"{', '.join(taken) or 'a host'} was taken away (a spot interruption).",
                host=taken[0] if taken else None,
            )
        return with_attempts(failure, (*self._earlier, *self._endings[:-1]), why)

    def _too_few(self, now: float) -> str:
        there = self.fleet.present(now)
        asked = "FailurePolicy(min_hosts=…)" if self.policy.min_hosts is None else f"min_hosts={self.least}"
        return f"no retry: {len(there)} of {len(self.fleet.hosts)} hosts are left, and no host will come back. " + (
            f"Set {asked} to let the job go on with fewer hosts."
            if self.policy.min_hosts is None
            else f"The job needs {asked}."
        )
