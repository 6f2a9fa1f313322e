"""Hold back tracebacks in a job's output.

When an exception makes the job fail, ``fit()`` shows the traceback of this exception in its own error. The traceback
must not also be printed with the logs.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from estimators.records.logs import LogLine

#: Time for which a traceback at the end of a process's output is held back, in seconds. If the exception makes the job
#: fail, the job ends within this time.
HELD_S = 3.0
#: A line that a process prints within this time after the last held-back line is also held back. In nanoseconds.
_BURST_NS = 100_000_000

#: Matches the lines in the traceback of an exception group that describe its member exceptions.
_IN_GROUP = re.compile(rb" +\| \S")
_HEADER = re.compile(rb"\s*(?:\+ )?(?:Exception Group )?Traceback \(most recent call last\):")
#: Matches the line before the traceback that a process of a ``multiprocessing`` pool has sent as text.
_REMOTE = re.compile(rb"[\w.]*RemoteTraceback: *\r?$")
#: Every line that `_HEADER` or `_REMOTE` matches contains one of these texts. A search for the texts is faster.
_HINTS = (b"Traceback (most recent call last)", b"RemoteTraceback: ")
#: Beginnings of the line that Python prints between two chained exceptions.
_CHAIN = re.compile(r"During handling of the above exception|The above exception was the direct cause")

_Key = tuple[str, str | None]


class _HeldTraceback:
    """A traceback, and the lines that the same process printed directly after the traceback."""

    def __init__(self, line: LogLine, now: float) -> None:
        self.lines = [line]
        self.since = now


class Tracebacks:
    """A buffer that holds back the last traceback of each rank until the rank prints more or the job has ended.

    After 3 seconds, a traceback is shown in any case. No line is lost.

    Args:
        clock: A function that returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._held: dict[_Key, _HeldTraceback] = {}

    def take(self, lines: Iterable[LogLine]) -> Iterator[LogLine]:
        """Add new lines, and yield the lines that can be shown now."""
        now = self._clock()
        for line in lines:
            hinted = _HINTS[0] in line.data or _HINTS[1] in line.data
            if not self._held and not hinted:  # a shortcut for nearly every line
                yield line
                continue
            key = (line.host, line.process)
            held = self._held.get(key)
            if line.rank is None or (held is None and not hinted):
                yield line
                continue
            if held is not None:
                own = line.time_ns - held.lines[0].time_ns  # from the lines, because old logs are read quickly
                if line.time_ns - held.lines[-1].time_ns <= _BURST_NS and own <= HELD_S * 1e9:
                    held.lines.append(line)
                    continue
                del self._held[key]
                yield from held.lines
            if _begins(line):
                self._held[key] = _HeldTraceback(line, now)
            else:
                yield line
        for key, held in list(self._held.items()):
            if now - held.since >= HELD_S:
                del self._held[key]
                yield from held.lines

    @property
    def due(self) -> float | None:
        """Return the number of seconds until a held-back traceback has to be shown, or None if there is none."""
        if not self._held:
            return None
        return max(0.0, min(held.since for held in self._held.values()) + HELD_S - self._clock())

    def rest(self, told: str | None = None, mask: Callable[[str], str] = str) -> Iterator[LogLine]:
        """Yield the lines that are still held back, at the end of the job.

        If the caller shows the traceback of the job's failure (``told``), this traceback is not yielded. The held-back
        tracebacks of the other ranks are then consequences of the failure. Only the messages of their exceptions are
        yielded.

        Args:
            told: The traceback of the job's failure, which the caller shows itself. If the caller shows no traceback,
                None. All lines are then yielded.
            mask: A function that hides secrets in a text. The secrets in ``told`` are already hidden.
        """
        held, self._held = self._held, {}
        known = {_bare(line) for line in (told or "").splitlines()}
        for one in held.values():
            yield from one.lines if told is None else _untold(one.lines, known, mask)


def _untold(lines: list[LogLine], known: set[str], mask: Callable[[str], str]) -> Iterator[LogLine]:
    """Yield the held-back lines of a rank. Of the last traceback in the lines, yield only the exception messages.

    Messages that are also in the traceback that the caller shows are omitted.

    Args:
        lines: The lines, which contain a traceback.
        known: The lines of the traceback that the caller shows.
        mask: A function that hides secrets in a text.
    """
    texts = [_bare(mask(line.data.decode("utf-8", "replace"))) for line in lines]
    starts = [place for place, line in enumerate(lines) if _begins(line)]
    first = starts.pop()
    # Include the text of a remote traceback, and the tracebacks of the exceptions that are chained with the last one.
    while starts and (_REMOTE.match(lines[starts[-1]].data) or any(map(_CHAIN.match, texts[starts[-1] : first]))):
        first = starts.pop()
    yield from lines[:first]
    in_frames = False
    for line, text in zip(lines[first:], texts[first:], strict=True):
        if _begins(line) or _HEADER.match(line.data.lstrip(b" |")):
            in_frames = True
        elif in_frames and line.data.startswith((b" ", b"\t")) and not _IN_GROUP.match(line.data):
            continue
        elif text and text not in known and text != '"""' and not text.isdigit() and not _CHAIN.match(text):
            in_frames = in_frames and _IN_GROUP.match(line.data) is not None
            yield line


def _begins(line: LogLine) -> bool:
    return _HEADER.match(line.data) is not None or _REMOTE.match(line.data) is not None


def _bare(line: str) -> str:
    """Return a line without the marks that Python draws around the members of an exception group."""
    return line.strip(" |+-\r\n")
