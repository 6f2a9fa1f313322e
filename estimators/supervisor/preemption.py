"""Carry out injected faults in a job that is not elastic: kill ranks, take hosts away, and return hosts.

If a host is taken away, the ranks on the other hosts cannot continue. Therefore the attempt ends. The state machine
(:mod:`.machine`) decides whether another attempt follows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from container.contract.messages import encode
from estimators.backends.base import Backend
from estimators.supervisor.events import HostReturned, HostTaken

if TYPE_CHECKING:
    from estimators.supervisor.supervisor import Supervisor


class GangHosts:
    """The hosts of a job that is not elastic, as the fault injection sees them.

    The class implements :class:`estimators.supervisor.fault_injection.FaultyHosts`.

    Args:
        backend: The backend that runs the hosts.
        job: The supervisor.
    """

    def __init__(self, backend: Backend, job: Supervisor) -> None:
        self._backend = backend
        self._job = job

    def interrupt(self, host: str, notice_s: float, back_in_s: float | None) -> None:
        """Post the event that the host is taken away. The state machine then requests that the ranks of all hosts save.
        After ``notice_s`` seconds, it kills the host.
        """
        self._job.post(HostTaken(host, notice_s, back_in_s))

    def kill_rank(self, rank: int, signal: int) -> None:
        """Send a signal to a rank, through the toolkit of the rank's host, which has started the rank."""
        host = self._job.attempt.ranks.get(rank)
        if host is None:  # the rank has not started, or the image lacks the toolkit
            text = f"signal {signal} was not sent to rank {rank}: the rank is not running"
            self._job.tell("fault_missed", self._job.attempt.spec.hosts[0], text, rank=rank)
        else:
            self._backend.say(host, encode({"op": "kill", "rank": rank, "signal": signal}))

    def remove(self, host: str, back_in_s: float | None) -> None:
        """Kill the host without a notice."""
        self._job.post(HostTaken(host, None, back_in_s))

    def return_host(self, host: str) -> None:
        """Make the host available for the next attempt."""
        self._job.post(HostReturned(host))
