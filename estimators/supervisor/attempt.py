"""The attempt under way: its hosts, and what has become of them."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from container.contract.failures import Cause, Failure
from container.system.asyncio_loop import AsyncioLoop
from container.system.loop import Timer
from estimators.backends.base import HostEnd
from estimators.job.request import TrainingJobSpec

if TYPE_CHECKING:  # the others need not wait for the imports of elastic jobs
    from estimators.supervisor.elastic.controller import ElasticController


#: What became of a host whose toolkit somebody else has sent SIGTERM.
TERMINATED = "the host's training process was stopped by another program (SIGTERM); the script had time to save."


class Attempt:
    """What is known of an attempt; the next one has its own.

    Args:
        loop: The supervisor's loop.
        spec: The job, on the hosts of this attempt.
        checkpoints: The folder of the job's checkpoints.

    Attributes:
        elastic: The membership of an elastic job.
        ended: How its hosts ended, by their names.
        failure: Why it, or the job, cannot go on.
        reported: What a host's toolkit has said of that.
        ranks: Where each rank runs.
        told_to_stop: Whether its ranks were told to save and end.
        terminated: The first host whose toolkit has got SIGTERM.
        is_bounded: Whether the others' end has a limit, since one has ended.
    """

    def __init__(self, loop: AsyncioLoop, spec: TrainingJobSpec, checkpoints: Path) -> None:
        self.spec = spec
        self.elastic: ElasticController | None = None
        self.ended: dict[str, HostEnd] = {}
        self.failure: Failure | None = None
        self.reported: Failure | None = None
        self.ranks: dict[int, str] = {}
        self.told_to_stop = False
        self.terminated: str | None = None
        self.is_bounded = False
        self._loop = loop
        self._timers: list[Timer] = []
        self._cancelled = False
        self._checkpoints = checkpoints
        self._mark = _newest(checkpoints)

    @property
    def everyone_ended(self) -> bool:
        """Whether none of its hosts runs any more."""
        if self.elastic is not None:
            return self.elastic.over and not self.elastic.roster.running
        return len(self.ended) == len(self.spec.hosts)

    @property
    def has_failed(self) -> bool:
        """Whether a host did not end well."""
        return any(end.exit_code != 0 for end in self.ended.values())

    @property
    def has_saved(self) -> bool:
        """Whether something new is in the folder of checkpoints, whoever writes there."""
        return _newest(self._checkpoints) != self._mark

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Do something in a while, unless the attempt is over before."""
        if self._cancelled:
            return
        self._timers.append(self._loop.call_later(seconds, action))

    def close(self) -> None:
        """No host joins an elastic job any more."""
        if self.elastic is not None:
            self.elastic.close()

    def cancel(self) -> None:
        """It is over: nothing of :meth:`later` is done any more."""
        self._cancelled = True
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    def unexplained(self) -> Failure:
        """Return the failure of a host whose toolkit has reported none."""
        failed = {host: end for host, end in self.ended.items() if end.exit_code != 0}
        host = self.terminated if self.terminated in failed else next(iter(failed))
        end = failed[host]
        message = f"the host's training process exited with code {end.exit_code} without saying why."
        if end.exit_code == 128 + signal.SIGTERM:
            message = TERMINATED
        return Failure(
            cause=Cause.PROCESS,
            message=message,
            host=host,
            exit_code=end.exit_code,
            signal=end.signal,
        )


def _newest(folder: Path) -> int:
    """Return a number that changes when something new is in a folder."""
    newest = 0
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            newest = max(newest, entry.stat(follow_symlinks=False).st_mtime_ns)
    return newest
