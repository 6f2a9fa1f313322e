"""Decide which log lines of a job are shown to the user.

TensorFlow's start-up lines are hidden. A line that several ranks print at about the same time is shown once, with the
number of ranks. This is called folding. The log files still contain every line.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from estimators.records.logs import LogLine

#: Time for which a line is held back, in seconds, because other ranks may print the same line. People do not notice
#: this delay.
WINDOW = 0.125
#: Maximum number of waiting lines.
_HELD = 4096
#: Maximum number of waiting lines with the same text. Such lines collect if a rank prints a line repeatedly.
_EQUALS = 32

_Key = tuple[str, str | None]

#: Matches the time and the thread at the beginning of TensorFlow's lines, as in ``I0000 00:00:1795.3 16629
#: port.cc:153]``. Until TensorFlow 2.17, lines begin like ``2024-01-31 10:00:00.1: I
#: tensorflow/core/util/port.cc:153]``.
_STAMP = rb"(?:[IWEF]\d{4} [\d:.]+ +\d+ |\d{4}-\d\d-\d\d [\d:.]+: [IWEF] )"
_STAMPED = re.compile(_STAMP)

#: Matches lines that every process prints when it imports TensorFlow or connects to other processes. The line "Cannot
#: dlopen some GPU libraries" is not included, because it may be an error on a machine with a GPU.
_STARTUP = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR"
    rb"|To enable the following instructions: .* rebuild TensorFlow with the appropriate compiler flags\."
    # One line for each task that has not connected to the cluster yet.
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

#: The line that is shown once, in place of all start-up lines.
STARTUP_NOTE = b"(TensorFlow's start-up lines are left out; `fleetfit logs --all` or job.logs(all=True) has them)\n"

_TRACEBACK = re.compile(rb"\s*(?:\+ )?(?:Exception Group )?Traceback \(most recent call last\):")
_CHAIN = (b"During handling of the above exception", b"The above exception was the direct cause")
#: Matches a letter or digit. A line without letters and digits, such as a blank line, is not folded, because it belongs
#: to the lines around it.
_WORD = re.compile(rb"\w")


def is_startup(data: bytes) -> bool:
    """Return whether a line is a start-up line, which every process prints when it imports TensorFlow."""
    return _STARTUP.match(data) is not None


class Shown(NamedTuple):
    """A line to show.

    Attributes:
        line: The line of the lowest rank that printed it.
        times: The number of ranks that printed the line.
    """

    line: LogLine
    times: int = 1


@dataclasses.dataclass(slots=True, eq=False)
class _HeldLine:
    """A line that is held back, because other ranks may still print the same line."""

    line: LogLine
    number: int
    arrived: float
    foldable: bool
    said_by: int = 1


class Folding:
    """A filter for the log lines of a job. It decides which lines are shown, and when.

    The lines of each process stay in order, and no line is lost. A line that other ranks may still print is held back
    for :data:`WINDOW` seconds. All later lines wait behind it. Tracebacks, and lines that one rank repeats, are never
    folded.

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
        """Yield all lines that are still held back. Call this method after the job's last line."""
        while self._queue:
            yield self._pop()

    @property
    def due(self) -> float | None:
        """Return the number of seconds until a held-back line has to be shown, or None if no line is held back."""
        if not self._queue:
            return None
        return max(0.0, self._queue[0].arrived + WINDOW - self._clock())

    def _put(self, line: LogLine, now: float) -> None:
        key = (line.host, line.process)
        foldable = self._is_foldable(line, key)
        equals = self._open.get(_said(line), ()) if foldable else ()
        # Fold the line only into an equal line that was queued after the previous line of this process, to keep the
        # order of the process's lines.
        newest = self._newest.get(key, -1)
        equal = next((held for held in equals if held.number > newest), None)
        if equal is not None:
            equal.said_by += 1
            if (line.rank or 0) < (equal.line.rank or 0):
                equal.line = line
            self._newest[key] = equal.number
            return
        held = _HeldLine(line, self._number, now, foldable)
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
                self._in_traceback.discard(key)  # this line names the exception and is the last line of the traceback
            return False
        if line.rank is None or not data.endswith(b"\n") or data.startswith(_CHAIN):
            return False
        return _WORD.search(data) is not None

    def _release(self, time_ns: int | None, now: float) -> Iterator[Shown]:
        """Remove the lines that need not wait any longer from the front of the queue, and yield them.

        A line need not wait if the line cannot be folded, if it has waited for :data:`WINDOW` seconds, or if too many
        lines are waiting.

        Args:
            time_ns: The time of the next line in the log, in nanoseconds since the epoch. It shows how long the queued
                lines have waited. With None, the clock is used instead.
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
    """Return the parts that must be equal in two lines for folding: the text and the number of the attempt.

    The text is returned without the time and the thread at the beginning of TensorFlow's lines.
    """
    return _STAMPED.sub(b"", line.data, count=1) if _STAMPED.match(line.data) else line.data, line.attempt
