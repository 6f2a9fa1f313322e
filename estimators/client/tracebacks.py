"""Tracebacks in what a job prints: the one that ends the job is told once, by the error that ``fit()`` raises."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from estimators.records.logs import LogLine

#: How long a traceback is held at the end of what a process prints, in seconds: a job that fails by it ends sooner.
HELD_S = 3.0
#: Lines that a process prints within this time of a traceback's last line are held with it, in nanoseconds.
_BURST_NS = 100_000_000

_HINT = b"Traceback (most recent call last)"
#: What an exception group says of its members, between their frames.
_IN_GROUP = re.compile(rb" +\| \S")
_HEADER = re.compile(rb"\s*(?:\+ )?(?:Exception Group )?Traceback \(most recent call last\):")
#: What stands between two exceptions of a chain.
_CHAIN = (b"During handling of the above exception", b"The above exception was the direct cause")

_Key = tuple[str, str | None]


class _Held:
    """A traceback, and what its process printed right behind it."""

    def __init__(self, line: LogLine, now: float) -> None:
        self.lines = [line]
        self.since = now


class Tracebacks:
    """Holds each rank's traceback until the rank prints more, or the job is over. No line is lost.

    Args:
        clock: Seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._held: dict[_Key, _Held] = {}

    def take(self, lines: Iterable[LogLine]) -> Iterator[LogLine]:
        """Take lines, and give what may be shown now."""
        now = self._clock()
        for line in lines:
            if not self._held and _HINT not in line.data:  # nearly every line
                yield line
                continue
            key = (line.host, line.process)
            held = self._held.get(key)
            if line.rank is None or (held is None and _HINT not in line.data):
                yield line
                continue
            if held is not None:
                own = line.time_ns - held.lines[0].time_ns  # a log of hours passes here in a moment, too
                if line.time_ns - held.lines[-1].time_ns <= _BURST_NS and own <= HELD_S * 1e9:
                    held.lines.append(line)
                    continue
                del self._held[key]
                yield from held.lines
            if _HEADER.match(line.data) is not None:
                self._held[key] = _Held(line, now)
            else:
                yield line
        for key, held in list(self._held.items()):
            if now - held.since >= HELD_S:
                del self._held[key]
                yield from held.lines

    @property
    def due(self) -> float | None:
        """In how many seconds something is to be shown; None while nothing is held."""
        if not self._held:
            return None
        return max(0.0, min(held.since for held in self._held.values()) + HELD_S - self._clock())

    def rest(self, told: str | None = None, mask: Callable[[str], str] = str) -> Iterator[LogLine]:
        """Give all that is held.

        Args:
            told: The traceback of the job's failure, if one is told. What a rank prints of it is left out then, and of
                the last traceback of each other rank, which is its consequence, the frames.
            mask: Hides secrets in a text as they are hidden in ``told``.
        """
        held, self._held = self._held, {}
        known = {line.strip() for line in (told or "").splitlines()}
        for one in held.values():
            yield from one.lines if told is None else _untold(one.lines, known, mask)


def _untold(lines: list[LogLine], known: set[str], mask: Callable[[str], str]) -> Iterator[LogLine]:
    """Yield the lines without the last traceback, but for what it says that is not known."""
    headers = [place for place, line in enumerate(lines) if _HEADER.match(line.data) is not None]
    first = headers.pop()
    while headers and any(line.data.startswith(_CHAIN) for line in lines[headers[-1] : first]):
        first = headers.pop()  # of a chain, or of a group
    yield from lines[:first]
    in_frames = False
    for line in lines[first:]:
        text = mask(line.data.decode("utf-8", "replace")).strip(" |+-\r\n")
        if _HEADER.match(line.data) is not None:
            in_frames = True
        elif in_frames and line.data.startswith((b" ", b"\t")) and not _IN_GROUP.match(line.data):
            continue
        elif text and text not in known and not text.isdigit() and not line.data.startswith(_CHAIN):
            in_frames = in_frames and _IN_GROUP.match(line.data) is not None
            yield line
