"""Show the progress of a long transfer as a bar in one line of the job's log. The line is redrawn."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeAlias

from container.contract import wire

#: A function that receives the agent's lines for a job: progress and events.
Tell: TypeAlias = Callable[[bytes], None]

#: The bar appears only after this many seconds; a shorter transfer shows only its last line.
_FIRST_S = 0.5
_EVERY_S = 0.5
_BAR = 20


class ProgressBar:
    """A progress bar. Several threads may call its methods.

    Args:
        tell: Receives the lines.
        host: The host that transfers the data.
        what: Description of the transfer, such as ``channel 'train'``.
        total: Size of the transfer in bytes.
        first_s: Number of seconds after which the bar appears. If None, half a second.
    """

    def __init__(self, tell: Tell, host: str, what: str, total: int, *, first_s: float | None = None) -> None:
        self._tell = tell
        self._tag = wire.prefix(host, None).encode()
        self._what = what
        self._total = total
        self._done = 0
        self._lock = threading.Lock()
        self._start = time.monotonic()
        self._next = self._start + (_FIRST_S if first_s is None else first_s)
        self._shown = False

    def advance(self, count: int) -> None:
        """Add ``count`` to the number of transferred bytes. ``count`` is negative if bytes must be transferred
        again.
        """
        with self._lock:
            self._done += count
            now = time.monotonic()
            if now >= self._next:
                self._next = now + _EVERY_S
                self._shown = True
                self._tell(wire.encode_piece(self._tag, f"{self._line(now)}\r".encode()))

    def end(self, text: str) -> None:
        """Replace the bar by a last line, which shows ``text``. If the transfer was not empty, the line also shows a
        full bar.
        """
        bar = f" {_bar(1.0)}  " if self._total else ": "
        self._tell(wire.encode_piece(self._tag, f"{self._what}{bar}{text}\n".encode()))

    @property
    def shown(self) -> bool:
        """Return whether the bar has appeared."""
        return self._shown

    @property
    def elapsed(self) -> float:
        """Return the number of seconds since the transfer began."""
        return time.monotonic() - self._start

    def _line(self, now: float) -> str:
        share = min(max(self._done / self._total, 0.0), 1.0) if self._total else 1.0
        rate = self._done / max(now - self._start, 1e-9)
        return f"{self._what} {_bar(share)}  {size(self._done)} of {size(self._total)}, {size(rate)}/s"


def _bar(share: float) -> str:
    full = int(share * _BAR)
    return f"{'█' * full}{'░' * (_BAR - full)} {share:4.0%}"


def size(count: float) -> str:
    """Format a number of bytes, such as ``12.3 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def warn(tell: Tell, host: str, text: str) -> None:
    """Report a warning as an event."""
    tell(wire.Event(kind="warning", host=host, data={"message": text}).to_line())
