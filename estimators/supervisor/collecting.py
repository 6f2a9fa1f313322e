"""Collect a job's provenance while the job trains."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

from container.system import processes
from container.system.asyncio_loop import AsyncioLoop, within
from container.system.loop import Timer
from estimators.records.provenance import command
from estimators.supervisor.journal import Journal

#: The collector's delay after the start of the job, and again after the start of the job's hosts, in seconds. During a
#: launch, the collector would compete with the job for the cores.
_DELAY = 1.0


class ProvenanceCollector:
    """A handle of the provenance collector, a process that records on which machine and with which software the job
    ran.

    Args:
        loop: The supervisor's event loop.
        folder: The folder of the job's record.
        protected: The pids of processes that are not terminated with the hosts. The pid of the collector is in the set
            while the collector runs.
        journal: The job's journal, which receives a warning if the collector cannot be started.
    """

    def __init__(self, loop: AsyncioLoop, folder: Path, protected: set[int], journal: Journal) -> None:
        self._loop = loop
        self._folder = folder
        self._protected = protected
        self._journal = journal
        self._pid: int | None = None
        self._ended = asyncio.Event()
        self._timer: Timer | None = None

    def start_soon(self) -> None:
        """Start the collector in ``_DELAY`` seconds, so that the collector does not slow the launch of the job."""
        self._timer = self._loop.call_later(_DELAY, self._start)

    def hosts_start(self) -> None:
        """Restart the delay of ``_DELAY`` seconds when hosts are started. Do nothing if the collector has already been
        started.
        """
        if self._timer is not None:
            self._timer.cancel()
            self.start_soon()

    async def wait(self, seconds: float) -> set[int]:
        """Wait until the collector has ended. If the collector has not started yet, start it now.

        Args:
            seconds: The longest time to wait, in seconds.

        Returns:
            The collector's pid if it still runs. An empty set if the collector has ended.
        """
        if self._timer is not None:
            self._start()
        if self._pid is None:
            return set()
        with contextlib.suppress(asyncio.TimeoutError):
            await within(seconds, self._ended.wait())
        return set() if self._pid is None else {self._pid}

    def _start(self) -> None:
        """Start the collector with the lowest CPU priority, so that it does not slow the training."""
        assert self._timer is not None
        self._timer.cancel()
        self._timer = None
        try:
            pid = processes.spawn(command(self._folder), env=os.environ, cwd=self._folder, nice=19)
        except OSError as error:
            self._journal.warn(f"provenance could not be collected: {error}")
            return
        self._pid = pid
        self._protected.add(pid)

        def ended(status: int) -> None:
            self._pid = None
            self._ended.set()
            self._protected.discard(pid)

        self._loop.on_child(pid, ended)
