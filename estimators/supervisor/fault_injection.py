"""Inject faults into a job: the faults of ``fit(faults=…)`` and the interruptions of a :class:`SpotMarket`.

The module decides when a fault happens. An implementation of :class:`FaultyHosts` carries the faults out.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from container.contract import rules
from container.contract.wire import Event, Piece
from container.system.loop import Loop, Timer
from estimators.job import spot_market
from estimators.job.faults import Fault, Interrupt, Kill, RemoveHost

if TYPE_CHECKING:
    from estimators.supervisor.supervisor import Supervisor

#: How many bytes of each line of output are searched for the patterns of faults.
_LINE_LIMIT = 1 << 16


class FaultyHosts(Protocol):
    """The interface for injecting faults into the hosts of a running job. All methods return at once."""

    def interrupt(self, host: str, notice_s: float, back_in_s: float | None) -> None:
        """Interrupt a host: send the host a notice, and remove the host when the notice has expired.

        Args:
            host: The host.
            notice_s: How long the host's processes may run after they have received SIGTERM, in seconds.
            back_in_s: In how many seconds from now the host returns. None if the host never returns.
        """

    def kill_rank(self, rank: int, signal: int) -> None:
        """Send a signal to a rank."""

    def remove(self, host: str, back_in_s: float | None) -> None:
        """Remove a host without a notice. See :meth:`interrupt`."""

    def return_host(self, host: str) -> None:
        """Handle the return of a host that was taken away."""


class FaultInjector:
    """Schedule the faults to inject into one job, and the interruptions of the simulated spot market in which the job
    runs.

    Args:
        loop: The event loop that runs the timers.
        hosts: The hosts, which carry out the faults.
        faults: The faults of ``fit(faults=…)``.
        market: The simulated spot market. None for no interruptions.
        names: The names of the job's hosts.
        supervisor: The supervisor, which knows the ranks and records the injected faults.
    """

    def __init__(
        self,
        loop: Loop,
        hosts: FaultyHosts,
        *,
        faults: Sequence[Fault],
        market: spot_market.SpotMarket | None,
        names: Sequence[str],
        supervisor: Supervisor,
    ) -> None:
        self._loop = loop
        self._hosts = hosts
        self._faults = tuple(faults)
        self._market = market
        self._names = tuple(names)
        self._supervisor = supervisor
        self._pending: dict[int, Fault] = {}  # the faults of this attempt
        self._fired: set[int] = set()
        self._seen: set[int] = set()  # faults whose attempt has begun
        self._patterns: dict[int, re.Pattern[str]] = {}
        self._rests: dict[tuple[str, str | None], bytes] = {}
        self._timers: list[Timer] = []  # the timers of this attempt
        self._returns: list[Timer] = []
        self._interruptions: Iterator[spot_market.Interruption] | None = None
        self._market_timer: Timer | None = None
        self._began = 0.0
        self._over = False

    # --- the course of the job ---

    def attempt_began(self, attempt: int) -> None:
        """Start the timers of an attempt's faults. Call the function when the attempt's hosts have been started."""
        self.attempt_ended()
        self._pending = {number: fault for number, fault in enumerate(self._faults) if fault.happens_in(attempt)}
        self._seen |= set(self._pending)
        for number, fault in self._pending.items():
            if fault.at_s is not None:
                self._timers.append(self._loop.call_later(fault.at_s, lambda number=number: self._fire(number)))  # type: ignore[misc]
            elif fault.at_line is not None:
                self._patterns[number] = re.compile(fault.at_line)
        if self._market is not None and self._interruptions is None:
            self._began = time.monotonic()
            self._interruptions = spot_market.interruptions(self._market, self._names)
            self._next_interruption()

    def attempt_ended(self) -> None:
        """Cancel the remaining faults of the attempt. Call the function when the attempt's hosts have ended."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        self._pending = {}
        self._patterns = {}
        self._rests.clear()

    def end(self) -> list[str]:
        """Cancel all faults and interruptions. Call the function when the job is over.

        Returns:
            The faults that did not happen although the attempt for which they were planned has begun.
        """
        self._over = True
        self.attempt_ended()
        for timer in (*self._returns, *([self._market_timer] if self._market_timer is not None else [])):
            timer.cancel()
        return [str(self._faults[number]) for number in sorted(self._seen - self._fired)]

    # --- triggers of faults ---

    def output(self, piece: Piece) -> None:
        """Search the output of a process for the lines that trigger faults."""
        if not self._patterns:
            return
        rank = self._supervisor.rank_of(piece.host, piece.process)
        if rank is None:
            return
        key = (piece.host, piece.process)
        data = (self._rests.pop(key, b"") + piece.data)[:_LINE_LIMIT]
        if not piece.data.endswith((b"\n", b"\r")):
            self._rests[key] = data
            return
        text = data.decode("utf-8", "replace").rstrip("\r\n")
        for number, pattern in list(self._patterns.items()):
            fault = self._faults[number]
            if (not isinstance(fault, Kill) or fault.rank == rank) and pattern.search(text):
                self._fire(number, line=text)

    def event(self, event: Event) -> None:
        """Handle the event that a rank has reached the step of a fault. If the fault kills this rank, only record the
        fault, because the rank kills itself.
        """
        if event.kind != "fault_step" or not isinstance(number := event.data.get("id"), int):
            return
        fault = self._pending.get(number)
        if fault is None:
            return
        if isinstance(fault, Kill) and fault.rank == event.rank:
            self._note(number, fault, step=event.data.get("step"))
        else:
            self._fire(number, step=event.data.get("step"))

    # --- carrying out ---

    def _fire(self, number: int, **when: Any) -> None:
        fault = self._pending.get(number)
        if fault is None:
            return
        self._note(number, fault, **when)
        if isinstance(fault, Kill):
            self._hosts.kill_rank(fault.rank, fault.number)
        elif isinstance(fault, RemoveHost):
            self._remove(fault.host, fault.return_after_s)
        elif isinstance(fault, Interrupt):
            self._interrupt(fault.host, fault.notice_s, fault.return_after_s)

    def _note(self, number: int, fault: Fault, **when: Any) -> None:
        self._fired.add(number)
        self._pending.pop(number, None)
        self._patterns.pop(number, None)
        known = {name: value for name, value in when.items() if value is not None}
        self._supervisor.fault_injected(fault, {"fault": rules.to_dict(fault), **known})

    def _interrupt(self, host: str, notice_s: float, return_after_s: float | None) -> None:
        back = notice_s + return_after_s if return_after_s is not None else None
        self._hosts.interrupt(host, notice_s, back)
        self._return_in(host, back)

    def _remove(self, host: str, return_after_s: float | None) -> None:
        self._hosts.remove(host, return_after_s)
        self._return_in(host, return_after_s)

    def _return_in(self, host: str, seconds: float | None) -> None:
        if seconds is not None:
            self._returns.append(self._loop.call_later(seconds, lambda: self._hosts.return_host(host)))

    def _next_interruption(self) -> None:
        assert self._interruptions is not None and self._market is not None
        notice_s = self._market.notice_s
        found = next(self._interruptions, None)
        if found is None or self._over:
            return

        def due() -> None:
            self._interrupt(found.host, notice_s, found.return_after_s)
            self._next_interruption()

        self._market_timer = self._loop.call_later(max(0.0, self._began + found.at_s - time.monotonic()), due)
