"""Selects the log lines to show.

TensorFlow's start-up lines are hidden, and a line that several ranks print is shown once. Log files, and the output
that programs read, still contain every line.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from estimators.records.logs import LogLine

#: Time that a line waits for equal lines of other ranks, in seconds. People do not notice this delay.
WINDOW = 0.125
#: Maximum number of waiting lines.
_HELD = 4096
#: Maximum number of waiting lines with the same text, if a rank prints a line repeatedly.
_EQUALS = 32

_Key = tuple[str, str | None]

#: Time and thread at the beginning of TensorFlow's lines: ``I0000 00:00:1795.3 16629 port.cc:153]``; until 2.17
#: ``2024-01-31 10:00:00.1: I tensorflow/core/util/port.cc:153]``.
_STAMP = rb"(?:[IWEF]\d{4} [\d:.]+ +\d+ |\d{4}-\d\d-\d\d [\d:.]+: [IWEF] )"
_STAMPED = re.compile(_STAMP)

#: Lines that every process prints when it imports TensorFlow or connects to others. A line that may be an error on a
#: machine with a GPU is not included: "Cannot dlopen some GPU libraries".
_STARTUP = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR"
    rb"|To enable the following instructions: .* rebuild TensorFlow with the appropriate compiler flags\."
    # The tasks for which the cluster still waits.
    rb"|/job:\w+/replica:\d+/task:\d+\s*$"
    rb"|" + _STAMP + rb"(?:[\w/.-]+/)?(?:"
    rb"port\.cc:\d+\] oneDNN custom operations are on"
    rb"|cpu_feature_guard\.cc:\d+\] "
    rb"|cudart_stub\.cc:\d+\] Could not find cuda drivers"
    rb"|cuda_(?:fft|dnn|blas)\.cc:\d+\] Unable to register cu\w+ factory"
    rb"|computation_placer\.cc:\d+\] computation placer already registered"
    rb"|cuda_(?:platform|driver|executor)\.cc:\d+\] failed call to cuInit: .*\(303\)"
    rb"|(?:tf2tensorrt/utils/)?py_utils\.cc:\d+\] TF-TRT Warning: Could not find TensorRT"
    rb"|mlir_graph_optimization_pass\.cc:\d+\] "
    rb"|grpc_server_lib\.cc:\d+\] Started server with target"
    rb"|coordination_service\w*\.(?:cc|h):\d+\] "
    rb"(?:Initializing|.*has connected to|.*successfully connected|Waiting for \d+/\d+ tasks|Example stragglers"
    rb"|Barrier\(.* has passed with status: OK)"
    rb"|generator_dataset_op\.cc:\d+\] Memory patch applied"
    rb")"
)

#: Line that is shown once, in place of all start-up lines.
STARTUP_NOTE = b"(TensorFlow's start-up lines are left out; `fleetfit logs --all` or job.logs(all=True) has them)\n"

_TRACEBACK = re.compile(rb"\s*(?:\+ )?(?:Exception Group )?Traceback \(most recent call last\):")
_CHAIN = (b"During handling of the above exception", b"The above exception was the direct cause")
#: Lines without a letter or digit are not folded, because they belong to the surrounding lines.
_WORD = re.compile(rb"\w")


def is_startup(data: bytes) -> bool:
    """Return whether a line is a start-up line, which every process prints when it imports TensorFlow."""
    return _STARTUP.match(data) is not None


class Shown(NamedTuple):
    """A line to show.

    Attributes:
        line: The line, as printed by the lowest rank.
        times: The number of ranks that printed the line.
    """

    line: LogLine
    times: int = 1


class _HeldLine:
    """A line that waits for equal lines of other ranks."""

    __slots__ = ("arrived", "foldable", "line", "number", "said_by")

    def __init__(self, line: LogLine, number: int, arrived: float, *, foldable: bool) -> None:
        self.line = line
        self.number = number
        self.arrived = arrived
        self.said_by = 1
        self.foldable = foldable


class Folding:
    """The state that decides which lines are shown, and when the lines are shown.

    The lines of each process stay in order, and no line is lost. A line that other ranks may still print is held for
    :data:`WINDOW` seconds, together with all later lines. Repeated lines of one rank, and tracebacks, are never folded.

    Args:
        several: Whether the job has more than one rank. With one rank, lines are shown at once.
        clock: A function that returns the time in seconds.
    """

    def __init__(self, *, several: bool = True, clock: Callable[[], float] = time.monotonic) -> None:
        self._several = several
        self._clock = clock
        self._queue: deque[_HeldLine] = deque()
        self._open: dict[tuple[bytes, int], deque[_HeldLine]] = {}  # lines that other ranks may still print
        self._newest: dict[_Key, int] = {}  # process -> number of the last waiting line that the process has printed
        self._in_traceback: set[_Key] = set()
        self._number = 0
        self._noted = False

    def take(self, lines: Iterable[LogLine]) -> Iterator[Shown]:
        """Add new lines, and yield the lines that can be shown now."""
        now = self._clock()
        for line in lines:
            if is_startup(line.data):
                if self._noted:
                    continue
                self._noted = True
                line = line._replace(data=STARTUP_NOTE)
            if not self._several:
                yield Shown(line)
                continue
            yield from self._release(line.time_ns, now)
            self._put(line, now)
        yield from self._release(None, now)

    def rest(self) -> Iterator[Shown]:
        """Yield all lines that are still held. Call this method after the last line."""
        while self._queue:
            yield self._pop()

    @property
    def due(self) -> float | None:
        """Return the number of seconds until the next line has to be shown, or None if no line is held."""
        if not self._queue:
            return None
        return max(0.0, self._queue[0].arrived + WINDOW - self._clock())

    def _put(self, line: LogLine, now: float) -> None:
        key = (line.host, line.process)
        foldable = self._is_foldable(line, key)
        equals = self._open.get(_said(line), ()) if foldable else ()
        # Only fold with a line behind the process's previous one, so that the order of the process's lines is kept.
        newest = self._newest.get(key, -1)
        equal = next((held for held in equals if held.number > newest), None)
        if equal is not None:
            equal.said_by += 1
            if (line.rank or 0) < (equal.line.rank or 0):
                equal.line = line
            self._newest[key] = equal.number
            return
        held = _HeldLine(line, self._number, now, foldable=foldable)
        self._number += 1
        self._newest[key] = held.number
        self._queue.append(held)
        if foldable:
            self._open.setdefault(_said(line), deque(maxlen=_EQUALS)).append(held)

    def _is_foldable(self, line: LogLine, key: _Key) -> bool:
        data = line.data
        if _TRACEBACK.match(data) is not None:
            self._in_traceback.add(key)
            return False
        if key in self._in_traceback:
            if not data.startswith((b" ", b"\t")) and data.strip():
                self._in_traceback.discard(key)  # this line is the exception, the last one of a traceback
            return False
        if line.rank is None or not data.endswith(b"\n") or data.startswith(_CHAIN):
            return False
        return _WORD.search(data) is not None

    def _release(self, time_ns: int | None, now: float) -> Iterator[Shown]:
        """Yield lines from the front of the queue that need not wait any longer.

        A line need not wait if the line cannot be folded, if it has waited for :data:`WINDOW` seconds, or if too many
        lines are waiting.

        Args:
            time_ns: The time of the line that arrives next, in nanoseconds. With None, waiting times are measured by
                the clock.
            now: The current time of the clock.
        """
        queue = self._queue
        while queue:
            first = queue[0]
            waits = first.foldable and len(queue) <= _HELD
            if waits and time_ns is not None and time_ns - first.line.time_ns > WINDOW * 1e9:
                waits = False
            if waits and (time_ns is not None or now - first.arrived < WINDOW):
                return
            yield self._pop()

    def _pop(self) -> Shown:
        held = self._queue.popleft()
        key = _said(held.line)
        equals = self._open.get(key)
        if equals is not None and equals[0] is held:
            equals.popleft()
            if not equals:
                del self._open[key]
        return Shown(held.line, held.said_by)


def _said(line: LogLine) -> tuple[bytes, int]:
    """Return the part of a line that must be equal for folding.

    This part does not contain the time and thread at the beginning of TensorFlow's lines.
    """
    return _STAMPED.sub(b"", line.data, count=1) if _STAMPED.match(line.data) else line.data, line.attempt
