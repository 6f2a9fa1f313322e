"""An elastic job that makes no progress: who waits, and in what."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from container.contract.failures import Failure, no_progress, unanswered
from container.contract.wire import PROGRESS, STACKS, Event
from container.system import processes
from container.system.asyncio_loop import AsyncioLoop
from container.system.progress import ProgressJudge
from estimators.supervisor.elastic.members import Roster


class Hanging:
    """Judges it in the supervisor, since hosts come and go.

    Waiting for hosts is no hang, and has a limit of its own (``elastic_timeout``).

    Args:
        loop: The supervisor's loop.
        limit: Seconds without a sign of life of any worker after which the job fails.
        roster: The hosts and workers.
        waits: Whether Horovod's driver waits for workers.
        driver: The pid of Horovod's driver, while there is one.
        ask: Asks a host where its workers are.
        fail: Ends the job.
    """

    def __init__(
        self,
        loop: AsyncioLoop,
        limit: float,
        roster: Roster,
        *,
        waits: Callable[[], bool],
        driver: Callable[[], int | None],
        ask: Callable[[str], None],
        fail: Callable[[Failure], None],
    ) -> None:
        self._limit = limit
        self._roster = roster
        self._waits = waits
        self._driver = driver
        self._fail = fail
        self._judge = ProgressJudge(
            loop, limit, expected=self._is_progress_expected, hosts=self._hosts, ask=ask, give_up=self._give_up
        )
        self.start = self._judge.start
        self.close = self._judge.close

    def heed(self, event: Event) -> None:
        """Take what a host says of it."""
        if event.kind == PROGRESS:
            self._judge.alive()
        elif event.kind == STACKS:
            self._judge.take(event.host, dict(event.data.get("places") or {}), dict(event.data.get("missing") or {}))

    def _hosts(self) -> list[str]:
        return [host.name for host in self._roster.present_hosts if host.up]

    def _is_driver_stopped(self) -> bool:
        pid = self._driver()
        return pid is not None and processes.is_stopped(pid)

    def _is_progress_expected(self) -> bool:
        if not self._waits() or self._is_driver_stopped():
            return True
        return self._roster.preparing > 0

    def _lines(self, judge: ProgressJudge) -> Iterator[str]:
        if self._is_driver_stopped():
            yield f"Horovod's elastic driver (pid {self._driver()}): it is stopped (SIGSTOP); SIGCONT resumes it"
        for host in self._hosts():
            if host not in judge.places:
                yield unanswered(host)
            for process, place in judge.places.get(host, {}).items():
                rank = self._roster.rank_of(host, process)
                yield f"{host}, {process if rank is None else f'rank {rank}'}: {place}"

    def _give_up(self, judge: ProgressJudge) -> None:
        self._fail(no_progress(self._limit, self._lines(judge), judge.missing))
