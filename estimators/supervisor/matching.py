"""Searches the lines of a job for metrics, in a process of its own, so that no regular expression holds anybody up.

A pattern that takes too long for some lines is handed to RE2 if that is installed and has the same pattern. If not,
those lines are left out for it, with a warning; when it happens again, it is given up.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from container.contract.messages import Message
from container.system import processes
from container.system.connection import Connection
from container.system.loop import Loop, Timer
from estimators.job.metrics import Line, MetricDefinition
from estimators.job.numbers import Caught
from estimators.job.re2_syntax import to_re2
from estimators.supervisor.matcher import LIMIT

#: What one pattern may take for one portion of lines: of the processor's time, and by the clock, in seconds.
_CPU_SECONDS = 1.0
_CLOCK_SECONDS = 10.0
#: How often that is looked at, in seconds.
_PACE = 0.1
#: One portion: so many lines, so many characters.
_PORTION_LINES = 4096
_PORTION_SIZE = 1 << 18
#: So much may wait, in characters, with an allowance for each line. A job that prints faster waits a little now and
#: then; what comes beyond the second bound is not searched.
_EASY_SIZE = 4 << 20
_MOST_SIZE = 32 << 20
_LINE_ALLOWANCE = 200
_TURN_SECONDS = 0.5
#: So often a pattern may take too long before it is given up.
_STRIKES = 2

_ROOT = str(Path(__file__).resolve().parents[2])
_TICKS = os.sysconf("SC_CLK_TCK")

#: Takes the line, the metric, and what its pattern caught.
Found = Callable[[Line, MetricDefinition, Caught], None]


@dataclasses.dataclass
class _Pattern:
    definition: MetricDefinition
    re2: str | None = None
    strikes: int = 0


class Matching:
    """The lines that wait to be searched, and the process that does it.

    Args:
        loop: The supervisor's loop.
        definitions: The metrics.
        protected: Processes that do not end with the hosts; the one that searches is put there while it runs.
        found: Called for each line in which a metric's pattern caught something.
        done: Called after each portion of lines.
        warn: Called with what could not be searched.
    """

    def __init__(
        self,
        loop: Loop,
        definitions: Sequence[MetricDefinition],
        *,
        protected: set[int],
        found: Found,
        done: Callable[[], None],
        warn: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._patterns = [_Pattern(definition) for definition in definitions]
        self._protected = protected
        self._found = found
        self._done = done
        self._warn = warn
        self._waiting: collections.deque[Line] = collections.deque()
        self._size = 0  # of what waits and of the portion, in characters
        self._dropped = 0
        self._patient_from = 0.0
        self._portion: list[Line] = []  # what the process is searching
        self._left_out: set[int] = set()  # patterns that the portion is not searched for
        self._caught: dict[int, list[tuple[int, Caught]]] = {}  # what has been answered of the portion
        self._process: _Process | None = None
        self._timer: Timer | None = None
        self._asked_at = 0.0
        self._asked_cpu = 0.0

    def search(self, line: Line) -> None:
        """Have a line searched. What it has comes later, by the loop."""
        if all(pattern.strikes >= _STRIKES for pattern in self._patterns):
            return
        wait = self._size >= _EASY_SIZE and time.monotonic() >= self._patient_from
        if wait and not self._wait(_TURN_SECONDS, _EASY_SIZE):
            self._patient_from = time.monotonic() + _TURN_SECONDS  # others have their turn, too
        if self._size >= _MOST_SIZE:
            self._dropped += 1
            return
        self._waiting.append(line)
        self._size += len(line.text) + _LINE_ALLOWANCE
        if not self._portion and self._timer is None:
            self._look_in(0.0)  # when the lines of this turn of the loop are together

    def finish(self, seconds: float) -> None:
        """No more lines come: wait for what the waiting ones have, so long at most."""
        self._wait(seconds, 0)
        self._dropped += len(self._waiting) + len(self._portion)
        self._waiting.clear()
        self._portion = []
        self._size = 0
        self._end_process()
        if self._dropped:
            self._warn(
                f"metrics: {self._dropped:,} lines were not searched, because lines were printed faster than they can "
                "be searched."
            )
            self._dropped = 0

    # --- one portion after the other ---

    def _look_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        self._timer = None
        self._watch()
        self._next()
        if self._portion and self._timer is None:
            self._look_in(_PACE)

    def _wait(self, seconds: float, size: int) -> bool:
        """Search without the loop, so long at most, until no more than so much waits; returns whether that is so."""
        until = time.monotonic() + seconds
        while self._size > size:
            self._next()
            left = until - time.monotonic()
            if left <= 0 or self._process is None:
                break
            self._process.connection.exchange(min(left, _PACE))
            self._watch()
        return self._size <= size

    def _next(self) -> None:
        """Ask for the next portion, unless one is being searched."""
        while self._waiting and not self._portion:
            size = 0
            while self._waiting and len(self._portion) < _PORTION_LINES and size < _PORTION_SIZE:
                line = self._waiting.popleft()
                size += len(line.text)
                self._portion.append(line)
            self._left_out = {index for index, pattern in enumerate(self._patterns) if pattern.strikes >= _STRIKES}
            self._caught = {}
            self._ask()

    def _ask(self) -> None:
        """Have the portion searched for the patterns that are left."""
        if self._current() is None:
            self._portion_searched()
            return
        if self._process is None:
            try:
                self._process = _Process(self._loop, [_wire(pattern) for pattern in self._patterns], self._answered)
            except OSError as error:
                self._patterns = []
                self._portion_searched()
                self._warn(f"the output is not searched for metrics: {error}")
                return
            self._protected.add(self._process.pid)
        self._asked_at = time.monotonic()
        self._asked_cpu = self._process.cpu_s()
        left_out = sorted(self._left_out | self._caught.keys())
        lines = [line.text for line in self._portion]
        self._process.connection.send({"op": "search", "lines": lines, "left_out": left_out})

    def _answered(self, message: Message | None) -> None:
        """The process has searched the portion for one more pattern; None: it has ended."""
        current = self._current()
        if message is None or current is None or self._process is None:
            self._too_long("ended the process that searches for the metric")
            return
        self._caught[current] = [(int(number), Caught(*found)) for number, *found in message["found"]]
        self._asked_at = time.monotonic()
        self._asked_cpu = self._process.cpu_s()
        if self._current() is None:
            self._portion_searched()

    def _portion_searched(self) -> None:
        portion, self._portion = self._portion, []
        self._size -= sum(len(line.text) + _LINE_ALLOWANCE for line in portion)
        everything = [(number, index, found) for index, values in self._caught.items() for number, found in values]
        for number, index, found in sorted(everything, key=lambda one: one[:2]):
            self._found(portion[number], self._patterns[index].definition, found)
        self._done()
        if self._waiting:
            self._look_in(0.0)

    def _current(self) -> int | None:
        """Return the pattern that the portion is being searched for; None when that was the last one."""
        for index in range(len(self._patterns)):
            if index not in self._left_out and index not in self._caught:
                return index
        return None

    # --- patterns that take too long ---

    def _watch(self) -> None:
        if not self._portion or self._process is None:
            return
        spent_s = self._process.cpu_s() - self._asked_cpu
        if spent_s > _CPU_SECONDS or time.monotonic() - self._asked_at > _CLOCK_SECONDS:
            self._too_long("takes too long")

    def _too_long(self, what: str) -> None:
        self._end_process()
        index = self._current() if self._portion else None
        if index is None:
            return  # the next lines start it again
        pattern = self._patterns[index]
        definition = pattern.definition
        translated = to_re2(definition.regex) if pattern.re2 is None else None
        if translated is not None and _has_re2():
            pattern.re2 = translated
        else:
            pattern.strikes += 1
            self._left_out.add(index)
            over = pattern.strikes >= _STRIKES
            skipped = " on some lines, which are skipped for this metric"
            self._warn(
                f"metric {definition.name!r}: the regex {definition.regex!r} {what}"
                + (". The metric is not searched for any more" if over else skipped)
                + _remedy(pattern, translated)
            )
        self._ask()

    def _end_process(self) -> None:
        if self._process is not None:
            self._protected.discard(self._process.pid)
            self._process.end()
            self._process = None


def _remedy(pattern: _Pattern, translated: str | None) -> str:
    if pattern.re2 is not None:
        return "."
    if translated is not None:
        return ". `fleetfit install re2` makes such regexes fast."
    return ". Avoid nested repetitions, such as (a+)+."


def _wire(pattern: _Pattern) -> dict[str, str]:
    return {"re2": pattern.re2} if pattern.re2 is not None else {"re": pattern.definition.regex}


def _has_re2() -> bool:
    from importlib import metadata

    try:
        return bool(metadata.version("google-re2"))
    except metadata.PackageNotFoundError:
        return False


class _Process:
    """The process that searches, and the connection to it.

    Args:
        loop: The supervisor's loop.
        patterns: What to search for.
        answered: Takes each message that comes, and None when the process has ended.
    """

    def __init__(self, loop: Loop, patterns: list[dict[str, str]], answered: Callable[[Message | None], None]) -> None:
        ours, theirs = socket.socketpair()
        try:
            self.pid = processes.spawn(
                [sys.executable, "-m", "estimators.supervisor.matcher"],
                env={**os.environ, "PYTHONPATH": _ROOT},
                cwd="/",
                stdin=theirs.fileno(),
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        self._reaped = False
        loop.on_child(self.pid, self._was_reaped)
        self.connection = Connection(loop, ours, answered, lambda reason: answered(None), limit=LIMIT)
        self.connection.send({"op": "patterns", "patterns": patterns})

    def cpu_s(self) -> float:
        """Return the CPU time that it has used, in seconds."""
        try:
            with open(f"/proc/{self.pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def end(self) -> None:
        """Kill it; nothing of it is heard any more."""
        self.connection.close()
        if not self._reaped:  # else the number may be another's
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def _was_reaped(self, status: int) -> None:
        self._reaped = True
