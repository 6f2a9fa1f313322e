"""Observe on one host whether a job makes progress: whether its ranks show activity, and where they wait.

The decision is made by :class:`container.system.progress.ProgressJudge`. The judge runs in algo-1's toolkit or, if
hosts join and leave, in the supervisor.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from container.contract.environment import Environment
from container.contract.plan import Role
from container.contract.wire import PROGRESS, STACKS
from container.system import processes, progress
from container.system.loop import Loop
from container.toolkit import hangs
from container.toolkit.output import Output
from container.toolkit.process_group import Gang

if TYPE_CHECKING:
    from container.toolkit.runtime import Runtime


class ProgressWatch:
    """Observe this host's ranks, and send the judge two kinds of messages: that a rank shows activity, and where in its
    code each rank waits.

    Args:
        loop: The event loop.
        output: The receiver of messages.
        environment: The job as this host sees it.
        limit: The time without any activity of a rank after which the job fails, in seconds. None for no limit.
        host: The host's runtime.
    """

    def __init__(
        self, loop: Loop, output: Output, environment: Environment, limit: float | None, host: Runtime
    ) -> None:
        self._loop = loop
        self._output = output
        self._env = environment
        self._limit = limit
        self._host = host
        self._active = False

    def note_activity(self) -> None:
        """Record that a rank of this host has printed or reported something that shows progress."""
        self._active = True

    def start(self) -> None:
        """Start to observe the ranks, which the caller has just started. Do nothing if there is no time limit."""
        if self._limit:
            self._watch(self._limit)

    def _watch(self, limit: float) -> None:
        if not self._host.is_watched:
            return
        if self._active:
            self._active = False
            self._host.tell_progress(PROGRESS, {})
        self._loop.call_later(progress.interval(limit), lambda: self._watch(limit))

    def dump_stacks(self, gang: Gang) -> None:
        """Request the stacks of every rank of this host, and report where each rank waits."""
        self._output.say(self._env.current_host, "no progress: asking every rank for its stack")
        # Not through the wrappers, which may be suspended.
        asked = {member.name: hangs.ask(member.pid) for member in gang.ranks if member.running and member.pid}
        if gang.importer is not None and any(member.waits_for_importer for member in gang.ranks):
            hangs.ask(gang.importer)
        self._loop.call_later(progress.DUMP_TIME, lambda: self._tell_places(gang, asked))

    def _tell_places(self, gang: Gang, asked: dict[str, bool]) -> None:
        places = {
            member.name: hangs.where(
                member.pid,
                member.wrapper_pid,
                member.stream.tail.decode("utf-8", "replace"),
                self._env.tree.code,
                asked=asked.get(member.name, False),
            )
            for member in gang.ranks
            if member.running and member.pid is not None and member.stream is not None
        }
        waiting = [member.name for member in gang.ranks if member.waits_for_importer]
        if gang.importer is not None and waiting:
            # The importer's output is a file in memory; each rank will repeat this output.
            with contextlib.suppress(OSError):
                text = Path(f"/proc/{gang.importer}/fd/2").read_text(encoding="utf-8", errors="replace")
                places.update(
                    dict.fromkeys(waiting, hangs.where(gang.importer, None, text, self._env.tree.code, asked=True))
                )
        for member in gang.members.values():  # parameter servers and mpirun wait normally
            if member.role is not Role.RANK and member.running and member.pid and processes.is_stopped(member.pid):
                places[member.name] = hangs.STOPPED
        # Only rank 0 reports which ranks Horovod waits for.
        missing = {str(rank): tensors for member in gang.ranks for rank, tensors in member.stalls.missing.items()}
        self._host.tell_progress(STACKS, {"places": places, "missing": missing})
