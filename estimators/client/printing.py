"""Print log lines for people, with prefixes, colours and progress bars.

The output can be a terminal, Jupyter or a file.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import shutil
import sys
from collections.abc import Callable, Iterable
from typing import IO, TYPE_CHECKING

from container.contract.membership import natural_key
from container.contract.wire import prefix
from estimators.job.text import fit_columns, fit_parts, visible
from estimators.results.tables import prose, terminal_width

if TYPE_CHECKING:
    from estimators.client.folding import Folding, Shown
    from estimators.client.tracebacks import Tracebacks
    from estimators.records.logs import LogLine

_RESET = "\x1b[0m"
_DIM = "\x1b[2m"
#: Colours that are readable on dark and on light backgrounds.
_COLOURS = ("\x1b[36m", "\x1b[33m", "\x1b[35m", "\x1b[32m", "\x1b[34m", "\x1b[91m", "\x1b[96m", "\x1b[95m")

#: Limits for progress bars on streams that are not terminals. The first 20 states (`_BURST`) of a process's bar are
#: shown at once, then one state per second (`_REFILL_SECONDS`).
_BURST = 20
_REFILL_SECONDS = 1.0

#: Maximum number of progress bars below the log on a terminal.
_MAX_LIVE = 16

_Key = tuple[str, str | None]


class LogPrinter:
    """A printer of complete log lines for people. Each line has a prefix such as ``[algo-1:rank 0]``.

    Texts that end in ``\\r`` are progress bars. On a terminal, progress bars stand below the log and are redrawn in
    place. On any other stream, each state of a bar is printed as a line. If a bar changes many times a second, only one
    state per second is printed. The last state is always printed. The log files in the job's record contain all states.
    """

    def __init__(
        self,
        stream: IO[str] | None = None,
        *,
        colour: bool | None = None,
        mask: Callable[[str], str] | None = None,
        folding: Folding | None = None,
        tracebacks: Tracebacks | None = None,
    ) -> None:
        """Create a printer that prints to a stream.

        Args:
            stream: The stream. The default is the current ``sys.stdout``.
            colour: Whether to colour the prefixes. The default is True on a terminal and in Jupyter, unless
                ``NO_COLOR`` is set.
            mask: The function that hides secrets in a text before the text is shown.
            folding: The object that hides and folds lines. With None, every line is shown.
            tracebacks: The object that holds back tracebacks. If the traceback's exception makes the job fail,
                ``fit()`` shows the traceback, and the printer omits it. With None, no traceback is held back.
        """
        self.stream: IO[str] = stream if stream is not None else sys.stdout
        self._tty = is_terminal(self.stream)
        self._colour = wants_colour(self.stream) if colour is None else colour
        self._mask = mask
        self._folding = folding
        self._tracebacks = tracebacks
        # In a pipe or a file, print the text of a bar without control characters.
        self._plain = not (self._tty or in_jupyter(self.stream))
        self._tags: dict[_Key, str] = {}
        self._open: _Key | None = None  # the process whose line is incomplete
        self._decoders: dict[_Key, codecs.IncrementalDecoder] = {}
        self._live: dict[_Key, str] = {}  # process -> the current text of its progress bar
        self._status = ""  # the line below the progress bars
        self._has_status = False  # whether this line is drawn
        self._drawn = 0  # number of terminal lines that the bars occupy
        self._budget: dict[_Key, tuple[float, int]] = {}

    def print(self, lines: Iterable[LogLine]) -> None:
        """Print lines with a single write to the stream.

        Raises:
            BrokenPipeError: the reader has closed the stream.
        """
        out: list[str] = []
        self._take(lines if self._tracebacks is None else self._tracebacks.take(lines), out)
        self._emit(out)

    def _take(self, lines: Iterable[LogLine], out: list[str]) -> None:
        if self._folding is None:
            for line in lines:
                self._one(line, out)
        else:
            self._folded(self._folding.take(lines), out)

    @property
    def due(self) -> float | None:
        """Return the number of seconds after which :meth:`print` must be called to show held-back lines.

        Return None if no line is held back.
        """
        times = [held.due for held in (self._folding, self._tracebacks) if held is not None and held.due is not None]
        return min(times, default=None)

    def message(self, text: str) -> None:
        """Print a message of fleetfit after all lines that are held back for folding."""
        out: list[str] = []
        if self._folding is not None:
            self._folded(self._folding.rest(), out)
        self._say(text, out)

    def note(self, text: str) -> None:
        """Print a message of fleetfit at once, before lines that are held back."""
        self._say(text, [])

    def _say(self, text: str, out: list[str]) -> None:
        self._end_open_line(out)
        out.append(prose(text, terminal_width(self.stream)) + "\n")
        self._emit(out)

    def status(self, text: str) -> None:
        """Show a line below the log on a terminal. With ``""``, remove this line."""
        if text != self._status:
            self._status = text
            self._emit([])

    def finish(self, told: str | None = None) -> None:
        """Print everything that has not been printed yet.

        This includes lines that are held back, the last state of each progress bar, and an incomplete line.

        Args:
            told: The traceback of the job's failure, which the caller will print itself. The printer omits this
                traceback. None if the caller prints no traceback.
        """
        self._status = ""
        out: list[str] = []
        if self._tracebacks is not None:
            self._take(self._tracebacks.rest(told, self._mask or str), out)
        if self._folding is not None:
            self._folded(self._folding.rest(), out)
        self._end_open_line(out)
        for key, text in self._live.items():
            out.append(f"{self._tag(key)} {text}\n")
        self._live.clear()
        self._emit(out)

    def _folded(self, shown: Iterable[Shown], out: list[str]) -> None:
        for line, times in shown:
            self._one(line, out, times)

    def _one(self, line: LogLine, out: list[str], times: int = 1) -> None:
        key = (line[1], line[2])
        data = line[4]
        if data.endswith(b"\n"):
            text = self._decode(key, data[:-2] if data.endswith(b"\r\n") else data[:-1], final=True)
            if self._live:
                self._live.pop(key, None)
            if self._open == key:
                out.append(text + "\n")
                self._open = None
                return
            self._end_open_line(out)
            tag = self._tag(key)
            if times > 1:
                head, bracket, tail = tag.rpartition("]")
                tag = f"{head} ×{times}{bracket}{tail}"
            out.append(f"{tag} {text}\n")
        elif data.endswith(b"\r"):
            self._progress(key, self._decode(key, data[:-1], final=True), line.time_ns, out)
        else:
            text = self._decode(key, data, final=False)
            if self._open != key:
                self._end_open_line(out)
                out.append(self._tag(key) + " ")
                self._open = key
            out.append(text)

    def _progress(self, key: _Key, text: str, time_ns: int, out: list[str]) -> None:
        if self._open == key:  # the last piece of a long line that ends in a carriage return
            out.append(text + "\n")
            self._open = None
            return
        if not text.strip():
            return  # the carriage return before a bar is redrawn
        if not self._tty:
            if not self._affordable(key, time_ns):
                self._live[key] = text
                return
            self._end_open_line(out)
            out.append(f"{self._tag(key)} {text}\n")
            self._live.pop(key, None)
            return
        self._live.pop(key, None)
        self._live[key] = text

    def _affordable(self, key: _Key, time_ns: int) -> bool:
        """Return whether a progress bar's state may be shown now.

        After a burst of 20 states, one state per second is shown. The time is taken from the log lines, not from the
        clock.
        """
        level, since = self._budget.get(key, (float(_BURST), time_ns))
        level = min(float(_BURST), level + (time_ns - since) / 1e9 / _REFILL_SECONDS)
        paid = level >= 1
        self._budget[key] = (level - 1 if paid else level, time_ns)
        return paid

    def _end_open_line(self, out: list[str]) -> None:
        if self._open is not None:
            rest = self._decode(self._open, b"", final=True)
            out.append(rest + "\n")
            self._open = None

    def _decode(self, key: _Key, data: bytes, *, final: bool) -> str:
        if key not in self._decoders:
            if final:
                return self._masked(data.decode("utf-8", "replace"))
            self._decoders[key] = codecs.getincrementaldecoder("utf-8")("replace")
        text = self._decoders[key].decode(data, final)
        if final:
            del self._decoders[key]
        return self._masked(text)

    def _masked(self, text: str) -> str:
        text = visible(text, colours=not self._plain)
        return self._mask(text) if self._mask is not None else text

    def _tag(self, key: _Key) -> str:
        tag = self._tags.get(key)
        if tag is None:
            tag = prefix(*key)
            if self._colour:
                ranks = sum(1 for _, process in self._tags if process is not None)
                colour = _DIM if key[1] is None else _COLOURS[ranks % len(_COLOURS)]
                tag = f"{colour}{tag}{_RESET}"
            self._tags[key] = tag
        return tag

    def _emit(self, out: list[str]) -> None:
        if self._tty:
            if self._drawn or self._has_status:
                out.insert(0, (f"\x1b[{self._drawn}A" if self._drawn else "") + "\r\x1b[J")
                self._drawn, self._has_status = 0, False
            if self._open is None:
                width = shutil.get_terminal_size().columns
                bars = list(self._live.items())[-_MAX_LIVE:]
                for key, text in sorted(bars, key=lambda item: natural_key(prefix(*item[0]))):
                    room = width - 2 - len(prefix(*key))
                    out.append(f"{self._tag(key)} {fit_columns(text, room)}\n")
                self._drawn = len(bars)
                if self._status:  # no line break, so that output of other programs continues the line and is kept
                    text = fit_parts(self._masked(self._status), width - 1)
                    out.append(f"{_DIM}{text}{_RESET}" if self._colour else text)
                    self._has_status = True
        if out:
            write_text(self.stream, "".join(out))


class UnwritableError(OSError):
    """Raised if a stream cannot be written to, for example because the disk is full.

    A closed pipe does not raise this error.
    """


def write_text(stream: IO[str] | None, text: str) -> None:
    """Write and flush a text. Characters that the stream's encoding lacks are replaced by similar characters.

    With None as the stream, do nothing, as ``print`` does. ``sys.stdout`` and ``sys.stderr`` are None if Python was
    started with a closed descriptor.

    Raises:
        BrokenPipeError: the reader has closed the stream.
        UnwritableError: the stream cannot be written to.
    """
    if stream is None:
        return
    try:
        _write(stream, text)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UnwritableError(error.errno, error.strerror) from error


def say(text: str) -> None:
    """Print a message to standard error, without control sequences of terminals. A closed standard error is ignored."""
    with contextlib.suppress(OSError, ValueError):  # standard error is closed
        write_text(sys.stderr, prose(f"fleetfit: {visible(text)}", terminal_width(sys.stderr)) + "\n")


def _write(stream: IO[str], text: str) -> None:
    """Write and flush a text. If the stream is unbuffered, repeat the write until the whole text is written.

    With PYTHONUNBUFFERED, Python's text stream writes directly to the descriptor. If a signal interrupts such a write,
    the text stream drops the rest of the text. The loop therefore counts the written bytes and writes the rest.
    """
    encoding = getattr(stream, "encoding", None)
    raw = getattr(stream, "buffer", None)
    if isinstance(raw, io.RawIOBase):
        stream.flush()
        rest = memoryview(text.encode(encoding or "ascii", "fleetfit.nearest"))
        while rest:
            rest = rest[raw.write(rest) or 0 :]
        return
    if encoding is not None:  # encode here, because standard error would write "\\u2026"
        text = text.encode(encoding, "fleetfit.nearest").decode(encoding)
    stream.write(text)
    stream.flush()


def _to_ascii(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that an encoding lacks by similar characters or by question marks.

    This function is an error handler for ``str.encode``.
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_ASCII.get(character, "?") for character in error.object[error.start : error.end]), error.end


#: Characters that an encoding may lack -> replacements.
_ASCII = {
    "✓": "+", "✗": "x", "⚠": "!", "·": "|", "•": "*", "…": "...", "×": "x", "÷": "/", "−": "-", "–": "-", "—": "-",
    "─": "-", "━": "=", "│": "|", "├": "|", "└": "`", "→": "->", "≥": ">=", "≤": "<=", "µ": "u", "†": "*", "‡": "**",
    "‘": "'", "’": "'", "“": '"', "”": '"', "√": "sqrt", "σ": "sigma",
}  # fmt: skip
codecs.register_error("fleetfit.nearest", _to_ascii)


def is_terminal(stream: IO[str]) -> bool:
    """Return whether the stream is a terminal on which lines can be redrawn."""
    try:
        return stream.isatty() and os.environ.get("TERM") != "dumb" and not in_jupyter(stream)
    except (AttributeError, ValueError):
        return False


def in_jupyter(stream: IO[str] | None = None) -> bool:
    """Return whether the stream is the output of a Jupyter kernel. The default stream is ``sys.stdout``."""
    return type(stream if stream is not None else sys.stdout).__module__.partition(".")[0] == "ipykernel"


def wants_colour(stream: IO[str]) -> bool:
    """Return whether to print ANSI colours to a stream.

    Colours are printed on a terminal and in Jupyter, unless ``NO_COLOR`` is set.
    """
    if os.environ.get("NO_COLOR"):
        return False
    return is_terminal(stream) or in_jupyter(stream)
