"""Detect that an elastic job makes no progress, and report where in the code its workers wait."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from container.contract.failures import no_progress, unanswered
from container.contract.wire import PROGRESS, STACKS, Event
from container.system import processes
from container.system.asyncio_loop import AsyncioLoop
from container.system.progress import ProgressJudge

if TYPE_CHECKING:
    from estimators.supervisor.elastic.controller import ElasticController


class Hanging(ProgressJudge):
    """A detector of an elastic job that makes no progress. The detector fails the job after a time limit.

    The detector runs in the supervisor and not on a host, because hosts join and leave. Waiting for hosts does not
    count as a hang, because ``elastic_timeout`` limits the wait.

    Args:
        loop: The supervisor's event loop.
        limit: The number of seconds without progress of any worker after which the job fails.
        controller: The controller of the membership.
    """

    def __init__(self, loop: AsyncioLoop, limit: float, controller: ElasticController) -> None:
        super().__init__(loop, limit)
        self._controller = controller
        self._roster = controller.roster

    def heed(self, event: Event) -> None:
        """Handle a host's event that reports progress or the stacks of workers. Ignore other events."""
        if event.kind == PROGRESS:
            self.alive()
        elif event.kind == STACKS:
            self.take(event.host, dict(event.data.get("places") or {}), dict(event.data.get("missing") or {}))

    def hosts(self) -> list[str]:
        """Return the names of the hosts that have started."""
        return [host.name for host in self._roster.present_hosts if host.up]

    def _is_driver_stopped(self) -> bool:
        pid = self._controller.driver_pid
        return pid is not None and processes.is_stopped(pid)

    def ask(self, host: str) -> None:
        """Request the stacks of a host's workers."""
        self._controller.instruct(host, "dump")

    def is_expected(self) -> bool:
        """Return whether the job should make progress now.

        Progress is expected after the first cluster has formed, except while the driver waits for workers. Progress is
        always expected while workers are being prepared. Progress is also always expected while the driver's process is
        suspended, because a suspended driver does not report that its wait has timed out.
        """
        waits = self._controller.driver_waits or not self._controller.state.has_met
        return not waits or self._is_driver_stopped() or self._roster.preparing > 0

    def _lines(self) -> Iterator[str]:
        if self._is_driver_stopped():
            pid = self._controller.driver_pid
            yield f"Horovod's elastic driver (pid {pid}): it is stopped (SIGSTOP); SIGCONT resumes it"
        for host in self.hosts():
            if host not in self.places:
                yield unanswered(host)
            for process, place in self.places.get(host, {}).items():
                rank = self._roster.rank_of(host, process)
                yield f"{host}, {process if rank is None else f'rank {rank}'}: {place}"

    def give_up(self) -> None:
        """Fail the job with a report of where in the code each worker waits."""
        self._controller.fail(no_progress(self._limit, self._lines(), self.missing))
