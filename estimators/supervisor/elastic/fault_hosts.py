"""The faults of an elastic job: the market takes and returns hosts, faults kill ranks, and the job goes on."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from estimators.supervisor.elastic.controller import ElasticController
from estimators.supervisor.events import HostsChanged

if TYPE_CHECKING:
    from estimators.supervisor.supervisor import Supervisor


class ElasticHosts:
    """The hosts of an elastic job as :class:`estimators.supervisor.fault_injection.FaultyHosts`.

    A host that comes back has another name; whoever takes hosts knows them by the names that the attempt began with.

    Args:
        job: The supervisor, which has the membership of the attempt that runs.
    """

    def __init__(self, job: Supervisor) -> None:
        self._job = job
        self._now: dict[str, str] = {}  # the name that it began with -> the one that it has
        self._of: ElasticController | None = None  # whose names these are

    def interrupt(self, host: str, notice_s: float, back_in_s: float | None) -> None:
        """It leaves within the notice; the others go on."""
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
        """The worker that has the rank now."""
        controller = self._running()
        if controller is not None:
            try:
                controller.workers.signal(rank, signal)
            except ValueError as error:
                self._job.tell("fault_missed", "supervisor", f"rank {rank} could not be killed: {error}", rank=rank)

    def remove(self, host: str, back_in_s: float | None) -> None:
        """It is killed without a notice; the others go on."""
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
        """Another host comes in its place; between two attempts it is there for the next one."""
        attempts = self._job.attempts
        if self._job.ends or (host in attempts.fleet.hosts and host not in attempts.fleet.gone):
            return  # the attempt has begun with it
        attempts.fleet = attempts.fleet.returned(host)
        controller = self._running()
        if controller is None:
            self._job.tell("returned", host, f"{host} is back", target=host)
            self._job.post(HostsChanged())
            return
        try:
            [name] = controller.hosts.add(1)
        except ValueError:
            return  # others have come meanwhile: there are as many as there may be
        self._now[host] = name
        self._job.tell("returned", name, f"{host} is back as {name}", target=name)

    def _find(self, host: str) -> tuple[ElasticController, str] | None:
        controller = self._running()
        name = self._now.get(host, host)
        if controller is None or name not in controller.roster.running:
            return None
        return controller, name

    def _is_awaited(self, host: str) -> bool:
        """Return whether another attempt follows, and the host would be there for it."""
        attempts = self._job.attempts
        follows = not self._job.ends and (self._job.waits or bool(attempts.taken))
        return follows and host in attempts.fleet.present(time.monotonic())

    def _running(self) -> ElasticController | None:
        controller = self._job.elastic
        if controller is not self._of:
            self._of = controller
            self._now.clear()  # an attempt begins with the job's own names
        return controller if controller is not None and not controller.over else None

    def _take(self, host: str, back_in_s: float | None) -> None:
        """Note that a host is gone, should there be another attempt."""
        attempts = self._job.attempts
        if host in attempts.fleet.hosts:
            until = math.inf if back_in_s is None else time.monotonic() + back_in_s
            attempts.fleet = attempts.fleet.without(host, until=until)
