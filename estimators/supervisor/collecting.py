"""Collects a job's provenance while the job trains."""

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

#: #: How long after the start of the job, and again after the start of its hosts, the collector waits, in seconds.
#: During a launch, the collector must not compete for the cores.
_DELAY = 1.0


class ProvenanceCollector:
    """The process that writes down what the job ran on and with.

    Args:
        loop: The supervisor's loop.
        folder: The job's record.
        protected: Processes that do not end with the hosts; the collector is put there while it runs.
        journal: Takes a warning where it cannot be started.
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
        """Start the collector a moment after the job."""
        self._timer = self._loop.call_later(_DELAY, self._start)

    def hosts_start(self) -> None:
        """Delay the collector again because hosts start, unless it already runs."""
        if self._timer is not None:
            self._timer.cancel()
            self.start_soon()

    async def wait(self, seconds: float) -> set[int]:
        """Wait until the collector has ended; start it now if the job was shorter than the collector's delay.

        Returns:
            The collector's pid if it still runs, else an empty set.
        """
        if self._timer is not None:
            self._start()
        if self._pid is None:
            return set()
        with contextlib.suppress(asyncio.TimeoutError):
            await within(seconds, self._ended.wait())
        return set() if self._pid is None else {self._pid}

    def _start(self) -> None:
        """Start the collector at the lowest priority: it runs beside the training, or after a very short job."""
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
