"""Show the progress of provisioning: numbered steps, each with its elapsed time in seconds."""

from __future__ import annotations

import re
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

_TERMINAL_REFRESH_S = 0.25
_PLAIN_REFRESH_S = 10.0
_TELLING = re.compile(r"\s*(?:Downloading|Building|Prepared|Installed|WARNING: Retrying) ")
_NINJA_STATUS = re.compile(r"\s*\[(\d+/\d+)\] ")


class ProgressDisplay:
    """A display of a command's progress that shows nothing. Subclasses show the progress."""

    def detail(self, text: str) -> None:
        """Set the text that says what the running step does now. When the step has succeeded, its last text stays in
        the display.
        """

    def note(self, text: str) -> None:
        """Show a note to the user."""

    def output(self, line: str) -> None:
        """Handle a line that uv, pip or ninja prints: show it as the detail if it reports a time-consuming step."""
        if match := _NINJA_STATUS.match(line):
            self.detail(f"compiling {match[1]}")
        elif _TELLING.match(line):
            self.detail(line.strip())


#: A display that shows nothing.
SILENT = ProgressDisplay()


class StepProgress(ProgressDisplay):
    """A display of the running step, the step's current work, and the elapsed time.

    On a terminal, a single line is written again and again. In other outputs, such as CI logs and files, a line is
    written at the start and the end of a step, and every ten seconds in between. Otherwise, a long step would look like
    a hang.
    """

    def __init__(self, stream: TextIO | None = None, *, total: int = 0) -> None:
        self._stream = sys.stdout if stream is None else stream
        self._terminal = self._stream.isatty()
        self._lock = threading.Lock()
        self._label = ""
        self._detail = ""
        self._started = 0.0
        self._number = 0
        self.total = total

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Show a step while the block runs. An exception in the block marks the step as failed or interrupted."""
        self._number += 1
        self._label = f"[{self._number}/{self.total}] {title}" if self.total else title
        self._detail = ""
        self._started = time.monotonic()
        if not self._terminal:
            self._write_line(f"{self._label} ...")
        ended = threading.Event()
        # A thread updates the display, because the elapsed seconds must change even if a child process prints nothing.
        ticker = threading.Thread(target=self._tick, args=(ended,), name="progress", daemon=True)
        ticker.start()
        outcome = "failed after"
        try:
            yield
            outcome = "done in"
        except KeyboardInterrupt:
            outcome = "interrupted after"
            raise
        finally:
            ended.set()
            ticker.join()
            extra = f": {self._detail}" if self._detail and outcome == "done in" else ""
            self._write_line(f"{self._label} {outcome} {self._elapsed():.1f} s{extra}")

    def detail(self, text: str) -> None:
        self._detail = text

    def note(self, text: str) -> None:
        self._write_line(text)

    def _elapsed(self) -> float:
        return time.monotonic() - self._started

    def _tick(self, ended: threading.Event) -> None:
        interval_s = _TERMINAL_REFRESH_S if self._terminal else _PLAIN_REFRESH_S
        while not ended.wait(interval_s):
            detail = f": {self._detail}" if self._detail else ""
            text = f"{self._label}{detail} ({self._elapsed():.0f} s)"
            if self._terminal:
                width = shutil.get_terminal_size().columns
                with self._lock:
                    self._stream.write("\r\x1b[K" + text[: width - 1])
                    self._stream.flush()
            else:
                self._write_line(text)

    def _write_line(self, text: str) -> None:
        with self._lock:
            self._stream.write(("\r\x1b[K" if self._terminal else "") + text + "\n")
            self._stream.flush()
