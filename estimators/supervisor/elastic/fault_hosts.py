"""Inject faults into a running elastic job.

Faults and the simulated spot market take hosts away, return hosts and kill ranks. The job continues meanwhile.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from estimators.supervisor.elastic.controller import ElasticController
from estimators.supervisor.events import PlainEvent

if TYPE_CHECKING:
    from estimators.supervisor.supervisor import Supervisor


class ElasticHosts:
    """The hosts of an elastic job as the fault injection sees them. The class implements
    :class:`estimators.supervisor.fault_injection.FaultyHosts`.

    A host that returns gets a new name. The fault injection continues to use the name that the host had at the start of
    the attempt.

    Args:
        job: The supervisor, which has the membership of the running attempt.
    """

    def __init__(self, job: Supervisor) -> None:
        self._job = job
        self._now: dict[str, str] = {}  # the host's first name -> its current name
        self._of: ElasticController | None = None  # the controller whose hosts have these names

    def interrupt(self, host: str, notice_s: float, back_in_s: float | None) -> None:
        """Interrupt a host. The host leaves within ``notice_s`` seconds, and the other hosts continue. The host returns
        in ``back_in_s`` seconds, or never if the value is None.

        Between two attempts, only record that the next attempt does not have the host.
        """
        found = self._find(host)
        if found is not None:
            controller, name = found
            self._take(host, back_in_s)
            controller.hosts.interrupt(name, notice_s)
        elif self._is_awaited(host):
            self._take(host, back_in_s)
            text = f"{host} is interrupted. The next attempt does not have this host"
            self._job.tell("interrupted", host, text, target=host, notice_s=notice_s, back_in_s=back_in_s)

    def kill_rank(self, rank: int, signal: int) -> None:
        """Send a signal to the worker that currently has the rank."""
        controller = self._running()
        if controller is not None:
            try:
                controller.workers.signal(rank, signal)
            except ValueError as error:
                self._job.tell("fault_missed", "supervisor", f"rank {rank} could not be killed: {error}", rank=rank)

    def remove(self, host: str, back_in_s: float | None) -> None:
        """Kill a host without a notice. The other hosts continue. The host returns in ``back_in_s`` seconds, or never
        if the value is None.

        Between two attempts, only record that the next attempt does not have the host.
        """
        found = self._find(host)
        if found is not None:
            controller, name = found
            self._take(host, back_in_s)
            self._job.tell("removed", name, f"{name} is gone", target=name, back_in_s=back_in_s)
            controller.hosts.lose(name)
        elif self._is_awaited(host):
            self._take(host, back_in_s)
            self._job.tell("removed", host, f"{host} is gone", target=host, back_in_s=back_in_s)

    def return_host(self, host: str) -> None:
        """Handle the return of a host that was taken away.

        If an attempt runs, start a new host. Otherwise, add the host to the next attempt.
        """
        machine = self._job.machine
        attempts = machine.attempts
        if machine.ends or (host in attempts.fleet.hosts and host not in attempts.fleet.gone):
            return  # the job ends, or the host is available already
        attempts.fleet = attempts.fleet.returned(host)
        controller = self._running()
        if controller is None:
            self._job.tell("returned", host, f"{host} is back", target=host)
            self._job.post(PlainEvent.HOSTS_CHANGED)
            return
        try:
            [name] = controller.hosts.add(1)
        except ValueError:
            return  # other hosts have joined meanwhile, and the maximum is reached
        self._now[host] = name
        self._job.tell("returned", name, f"{host} is back as {name}", target=name)

    def _find(self, host: str) -> tuple[ElasticController, str] | None:
        controller = self._running()
        name = self._now.get(host, host)
        if controller is None or name not in controller.roster.running:
            return None
        return controller, name

    def _is_awaited(self, host: str) -> bool:
        """Return whether the job will have another attempt that uses the host."""
        machine = self._job.machine
        follows = not machine.ends and (machine.waits or bool(machine.attempts.taken))
        return follows and host in machine.attempts.fleet.present(time.monotonic())

    def _running(self) -> ElasticController | None:
        controller = self._job.attempt.elastic
        if controller is not self._of:
            self._of = controller
            self._now.clear()  # a new attempt begins with the job's initial host names
        return controller if controller is not None and not controller.over else None

    def _take(self, host: str, back_in_s: float | None) -> None:
        """Record that a host was taken away, so that the next attempt uses the host only after its return."""
        attempts = self._job.machine.attempts
        if host in attempts.fleet.hosts:
            until = math.inf if back_in_s is None else time.monotonic() + back_in_s
            attempts.fleet = attempts.fleet.without(host, until=until)
