"""What disturbs a job whose ranks train together: where a host goes, the attempt ends, and another one follows."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from container.contract.messages import encode
from container.system.asyncio_loop import AsyncioLoop
from estimators.backends.base import Backend
from estimators.supervisor.attempts import Attempts

#: How often it is looked whether the hosts of an attempt have been started that one is to be taken from, in seconds.
_PREPARING_POLL = 0.1


class PreemptedJob(Protocol):
    """The job, as the supervisor has it."""

    @property
    def hosts(self) -> Sequence[str]: ...
    @property
    def attempts(self) -> Attempts: ...
    @property
    def waits(self) -> bool: ...
    @property
    def ends(self) -> bool: ...
    def is_preparing(self) -> bool: ...
    def runs_on(self, host: str) -> bool: ...
    def host_of(self, rank: int) -> str | None: ...
    def tell_to_stop(self) -> None: ...
    def in_attempt(self, seconds: float, action: Callable[[], None]) -> None: ...
    def end_lost(self, host: str) -> None: ...
    def start_next(self) -> None: ...
    def tell(self, kind: str, host: str, text: str, **data: Any) -> None: ...


class GangHosts:
    """The hosts of a gang as :class:`estimators.supervisor.fault_injection.Hosts`.

    Args:
        loop: The supervisor's loop.
        backend: Who runs the hosts.
        job: The job.
    """

    def __init__(self, loop: AsyncioLoop, backend: Backend, job: PreemptedJob) -> None:
        self._loop = loop
        self._backend = backend
        self._job = job

    def interrupt(self, host: str, notice_s: float, back_in_s: float | None) -> None:
        """All ranks get the notice, since they train together; then the host is killed."""
        if self._job.is_preparing():
            self._loop.call_later(_PREPARING_POLL, lambda: self.interrupt(host, notice_s, back_in_s))
            return
        if not self._take(host, back_in_s):
            return
        self._job.tell(
            "interrupted",
            host,
            f"{host} is interrupted: the job has {notice_s:g} s to save",
            target=host,
            notice_s=notice_s,
            back_in_s=back_in_s,
        )
        if not self._job.runs_on(host):
            return
        self._job.attempts.taken.append(host)
        self._job.tell_to_stop()
        self._job.in_attempt(notice_s, lambda: self._job.end_lost(host))

    def kill_rank(self, rank: int, signal: int) -> None:
        """Through the toolkit of the rank's host."""
        host = self._job.host_of(rank)
        if host is None:  # it has not started, or the image has not our toolkit
            text = f"signal {signal} was not sent to rank {rank}: the rank is not running"
            self._job.tell("chaos_missed", self._job.hosts[0], text, rank=rank)
        else:
            self._backend.say(host, encode({"op": "kill", "rank": rank, "signal": signal}))

    def remove(self, host: str, back_in_s: float | None) -> None:
        """The host is killed without a notice."""
        if self._take(host, back_in_s):
            self._job.tell("removed", host, f"{host} is gone", target=host, back_in_s=back_in_s)
            if self._job.runs_on(host):
                self._job.attempts.removed.add(host)
                self._backend.kill_host(host)

    def return_host(self, host: str) -> None:
        """The host is there for the next attempt."""
        attempts = self._job.attempts
        if host in attempts.fleet.gone:
            attempts.fleet = attempts.fleet.returned(host)
            self._job.tell("returned", host, f"{host} is back", target=host)
            self._job.start_next()

    def _take(self, host: str, back_in_s: float | None) -> bool:
        """Note that a host is gone; False when there is nothing to take."""
        attempts, now = self._job.attempts, time.monotonic()
        if self._job.ends or host not in attempts.fleet.present(now):
            return False
        attempts.fleet = attempts.fleet.without(host, until=math.inf if back_in_s is None else now + back_in_s)
        if self._job.waits:
            self._loop.call_later(0.0, self._job.start_next)  # there may be too few now
        return True
