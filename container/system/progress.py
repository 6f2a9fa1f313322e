"""Detect that no rank of a job makes progress any more, and end the job."""

from __future__ import annotations

import abc
import time
from collections.abc import Mapping, Sequence

from container.system.loop import Loop

#: The time that ranks have to print their stacks, in seconds.
DUMP_TIME = 0.7
#: How long after :data:`DUMP_TIME` the judge waits for the hosts' reports before it fails the job, in seconds.
_REPORTS = 3.0


def interval(limit: float) -> float:
    """Return the time between two checks or reports of progress, in seconds.

    Args:
        limit: The time without progress after which a job fails, in seconds.
    """
    return min(max(limit / 10, 0.05), 5.0)


class ProgressJudge(abc.ABC):
    """Record signs of progress. After a time limit without progress, ask every host where its ranks are, and end the
    job.

    Args:
        loop: The loop that calls the checks.
        limit: The time without progress after which the hosts are asked, in seconds.

    Attributes:
        places: The positions in the code of each host's processes, by host.
        missing: For each rank, the tensors that other ranks have submitted and this rank has not. Horovod reports them.
    """

    def __init__(self, loop: Loop, limit: float) -> None:
        self._loop = loop
        self._limit = limit
        self._last = time.monotonic()
        self._closed = False
        self.places: dict[str, Mapping[str, str]] = {}
        self.missing: dict[int, str] = {}

    @abc.abstractmethod
    def is_expected(self) -> bool:
        """Return whether a process runs that should make progress. If not, the elapsed time is not counted."""

    @abc.abstractmethod
    def hosts(self) -> Sequence[str]:
        """Return the hosts that can report where their ranks are."""

    @abc.abstractmethod
    def ask(self, host: str) -> None:
        """Request a report of the current positions of a host's ranks."""

    @abc.abstractmethod
    def give_up(self) -> None:
        """Fail the job with an error message that contains the hosts' reports. The method is called at most once."""

    def start(self) -> None:
        """Start checking for progress."""
        self.alive()
        self._look()

    def close(self) -> None:
        """Stop checking for progress."""
        self._closed = True

    def alive(self) -> None:
        """Record that a rank has made progress."""
        self._last = time.monotonic()

    def take(self, host: str, places: Mapping[str, str], missing: Mapping[str, str]) -> None:
        """Record a host's report.

        Args:
            host: The host's name.
            places: The position in the code of each of the host's processes.
            missing: For each rank, the tensors that other ranks have submitted and this rank has not. Horovod reports
                them.
        """
        self.places[host] = places
        self.missing.update({int(rank): tensors for rank, tensors in missing.items()})

    def _look(self) -> None:
        if self._closed:
            return
        if not self.is_expected():
            self.alive()
        elif time.monotonic() - self._last > self._limit:
            self.places.clear()
            self.missing.clear()
            for host in self.hosts():
                self.ask(host)
            self._await(time.monotonic() + DUMP_TIME + _REPORTS)
            return
        self._loop.call_later(interval(self._limit), self._look)

    def _await(self, deadline: float) -> None:
        if self._closed:
            return
        if not self.is_expected():
            self._look()
        elif self.places.keys() >= set(self.hosts()) or time.monotonic() >= deadline:
            self._closed = True
            self.give_up()
        else:
            self._loop.call_later(0.05, lambda: self._await(deadline))
