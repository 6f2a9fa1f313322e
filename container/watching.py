"""Watches whether the ranks of a job make progress; ends one that does not, saying who waits where.

Every host notes signs of life of its own ranks and tells algo-1, which judges the whole cluster.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from container import hangs
from container.contract.environment import Environment
from container.contract.failures import Cause, Failure
from container.contract.plan import Role
from container.coordinator import Coordinator, Message
from container.gang import Gang
from container.output import Output
from container.supervision.loop import Loop

#: How long after the time for stacks the verdict waits for hosts that have not reported theirs, in seconds.
_REPORTS = 3.0


class ProgressWatch:
    """One host's part in it.

    Args:
        loop: The loop that drives it.
        output: Where it says what it does.
        environment: The job as this host sees it.
        limit: Seconds without a sign of life of any rank after which the job fails; None waits for ever.
        coordinator: The cluster's on algo-1; None elsewhere.
        tell: Says something to a host, on algo-1.
        report: Says something to algo-1.
    """

    def __init__(
        self,
        loop: Loop,
        output: Output,
        environment: Environment,
        limit: float | None,
        *,
        coordinator: Coordinator | None,
        tell: Callable[[str, Message], None],
        report: Callable[[Message], None],
    ) -> None:
        self._loop = loop
        self._output = output
        self._env = environment
        self._limit = limit
        self._coordinator = coordinator
        self._tell = tell
        self._report = report
        self._active = False
        self._last_progress = time.monotonic()
        self._stacks: dict[str, Mapping[str, str]] = {}
        self._missing: dict[int, str] = {}

    def note_activity(self) -> None:
        """A rank of this host printed or reported something that is a sign of progress."""
        self._active = True

    def alive(self) -> None:
        """Another host says that its ranks do."""
        self._last_progress = time.monotonic()

    def take_stacks(self, host: str, stacks: Mapping[str, str]) -> None:
        """Another host says where its ranks wait."""
        self._stacks[host] = stacks

    def start(self, running: Callable[[], bool]) -> None:
        """Begin, now that the ranks are being started.

        Args:
            running: Whether the job still runs, and there is something to watch.
        """
        if self._limit:
            self._last_progress = time.monotonic()
            self._watch(self._limit, running)

    def _watch(self, limit: float, running: Callable[[], bool]) -> None:
        """Tell algo-1 now and then whether anything happened here."""
        if not running():
            return
        if self._active:
            self._active = False
            if self._coordinator is None:
                self._report({"op": "alive"})
            self._last_progress = time.monotonic()
        elif self._coordinator is not None and time.monotonic() - self._last_progress > limit:
            for host in self._env.hosts:
                self._tell(host, {"op": "dump"})
            self._await_stacks(time.monotonic() + hangs.DUMP_TIME + _REPORTS)
            return
        self._loop.call_later(min(max(limit / 10, 0.05), 5.0), lambda: self._watch(limit, running))

    def dump_stacks(self, gang: Gang) -> None:
        """Have every rank of this host print its stacks, and report where each waits."""
        self._output.say(self._env.current_host, "no progress: asking every rank for its stack")
        for member in gang.ranks:  # only rank 0 says it, which is algo-1's
            self._missing.update(member.stalls.missing)
        gang.signal_all(hangs.STACK_SIGNAL, (Role.RANK,))
        self._loop.call_later(hangs.DUMP_TIME, lambda: self._report_stacks(gang))

    def _report_stacks(self, gang: Gang) -> None:
        stacks = {}
        for member in gang.ranks:
            if member.pid is not None and not member.ended and member.stream is not None:
                if hangs.stopped(member.pid):
                    stacks[member.name] = "it is stopped (SIGSTOP); SIGCONT lets it go on"
                    continue
                place = hangs.waiting_in(member.stream.tail.decode("utf-8", "replace"), self._env.tree.code)
                stacks[member.name] = place or "it did not answer (not a Python process, or it has no stack to show)"
        if self._coordinator is not None:
            self._stacks[self._env.current_host] = stacks
        else:
            self._report({"op": "stacks", "stacks": stacks})

    def _await_stacks(self, deadline: float) -> None:
        if self._stacks.keys() >= set(self._env.hosts) or time.monotonic() >= deadline:
            self._give_up()
        else:
            self._loop.call_later(0.05, lambda: self._await_stacks(deadline))

    def _give_up(self) -> None:
        assert self._coordinator is not None
        lines: list[str] = []
        for host in self._env.hosts:
            if host in self._stacks:
                lines += [f"{host}, {process}: {place}" for process, place in self._stacks[host].items()]
            else:
                lines.append(f"{host}: its toolkit did not answer (it is stopped, or the machine is overloaded)")
        stalls = [
            f"Horovod waits for rank {rank}, which has not submitted {tensors}."
            for rank, tensors in sorted(self._missing.items())
        ]
        self._coordinator.fail(
            Failure(
                cause=Cause.TIMEOUT,
                message=f"no rank has printed or reported anything for {self._limit:g} s.",
                host=self._env.current_host,
                places="\n".join(lines),
                hints=(
                    *stalls,
                    "Ranks that wait in a collective wait for one that does not take part in it. Every rank's stack is "
                    "in its log.",
                    "A job that is silent for long by design needs a longer hang_timeout.",
                ),
            )
        )
