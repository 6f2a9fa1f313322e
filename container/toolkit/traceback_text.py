"""Find a Python traceback in a process's output, for processes that could not report their exception themselves.

The functions are pure, and search the end of the output.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_HEADER = re.compile(r"^(?P<margin>[ |]*(?:\+ )?)(?:Exception Group )?Traceback \(most recent call last\):\s*$")
_GROUP = re.compile(r"^ *\+ Exception Group Traceback \(most recent call last\):\s*$")
#: In an exception group: the line between two exceptions, and the line that names an exception, after the margin.
_SEPARATOR = re.compile(r"^ *\+-[+-]*- (?:\d+|\.\.\.) -+$")
_IN_GROUP = re.compile(r"^ *\| (?!(?:Exception Group )?Traceback \(most recent call last\):)(\S.*)$")
_SUMMARY = re.compile(r"\(\d+ sub-exceptions?\)$")
_CHAIN = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
_SYNTAX_ERROR = re.compile(r"^(?:SyntaxError|IndentationError|TabError)(?::|$)")
_SYNTAX_PLACE = re.compile(r'^  File ".*", line \d+')
_FRAME = re.compile(r'^(?P<head> +(?:\| +)?File ")(?P<file>[^"]+)(?P<rest>", line \d+.*)$')
_FATAL = re.compile(r"^Fatal Python error: ")

#: Lines that TensorFlow and its libraries print during their import: information, warnings, and repeated registrations.
_STARTING = re.compile(
    r"(?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IW] |[IW]0000 00:00:|To enable the following instructions: "
    r"|WARNING: All log messages before absl::InitializeLog"
    r"|.*\] Unable to register cu\w+ (?:factory|plugin)|.*: Unable to register cu\w+ (?:factory|plugin))"
)
#: Maximum number of lines of an exception's message, which may have several paragraphs. Longer text is taken for output
#: of a process that continued after the exception.
_MESSAGE_LINES = 40
#: Number of lines that :func:`shorten` keeps at the beginning and at the end of a longer message.
_KEPT_LINES = 6
#: Maximum length of a line of :func:`log_tail`, in characters.
_LINE_LIMIT = 1000


def last_traceback(tail: bytes | str) -> str | None:
    """Return the last traceback in ``tail``. Return None if there is no traceback.

    Chained exceptions and exception groups are returned completely. A SyntaxError of the script itself, which Python
    prints without "Traceback", is also found. Faulthandler's "Fatal Python error" is found too.

    Args:
        tail: The end of a process's output.
    """
    lines = _lines(tail)
    found = [span for span in (_last_exception(lines), _last_syntax_error(lines), _last_fatal(lines)) if span]
    if not found:
        return None
    start, end = max(found, key=lambda span: span[1])
    return "\n".join(lines[start:end]).rstrip()


def log_tail(tail: bytes | str, lines: int = 15) -> str:
    """Return the last meaningful lines of an output. Return the messages of TensorFlow's import only if there are no
    other lines.

    Args:
        tail: The end of a process's output.
        lines: The maximum number of lines.
    """
    said = [line.rstrip() for line in _lines(tail)]
    said = [line for line in said if line and not _STARTING.match(line)] or said
    kept = [line if len(line) <= _LINE_LIMIT else line[: _LINE_LIMIT - 1] + "…" for line in said if line]
    return "\n".join(kept[-lines:])


def shorten(traceback: str) -> str:
    """Shorten a traceback whose message has many lines, such as arrays that TensorFlow prints. The middle of the
    message is omitted.

    Args:
        traceback: A traceback, as returned by :func:`last_traceback`.
    """
    lines = traceback.rstrip("\n").split("\n")
    first = message_start(lines)
    left_out = len(lines) - first - 2 * _KEPT_LINES if first is not None else 0
    if first is None or left_out < _KEPT_LINES:
        return traceback
    middle = f"… {left_out} lines left out; the log has them …"
    return "\n".join([*lines[: first + _KEPT_LINES], middle, *lines[-_KEPT_LINES:]]) + "\n"


def users_own(traceback: str, *, code: str, ours: Sequence[str]) -> str:
    """Return a traceback without the frames of fleetfit. Paths of the script's files become relative to the script's
    folder.

    If all frames are fleetfit's, the traceback is returned unchanged, because the error may be fleetfit's own.

    Args:
        traceback: A traceback, as returned by :func:`last_traceback`.
        code: The script's folder on the host. "" if unknown.
        ours: The paths of fleetfit's files and folders. The paths of folders end with a slash.
    """
    lines = traceback.split("\n")
    kept: list[str] = []
    others = 0
    ours_now = False
    margin = ""
    for line in lines:
        if (frame := _FRAME.match(line)) is not None:
            ours_now = any(frame["file"] == one or (one[-1:] == "/" and frame["file"].startswith(one)) for one in ours)
            others += not ours_now
            if code and frame["file"].startswith(f"{code}/"):
                line = f"{frame['head']}{frame['file'][len(code) + 1 :]}{frame['rest']}"
            margin = frame["head"].removesuffix('File "')
        elif ours_now and line.strip(" |") and not line.startswith((f"{margin}  ", f"{margin}[Previous line")):
            ours_now = False
        if not ours_now:
            kept.append(line)
    return "\n".join(kept) if others else traceback


def message_start(lines: list[str]) -> int | None:
    """Return the index of the first line of the exception's message, which follows the frames of the last traceback.

    Return None if there is no such line.
    """
    header = next((i for i in range(len(lines) - 1, -1, -1) if _HEADER.match(lines[i])), None)
    if header is None or lines[header].lstrip().startswith(("+", "|")):
        return None
    return next((i for i in range(header + 1, len(lines)) if lines[i] and not lines[i].startswith((" ", "\t"))), None)


def group_line(lines: list[str]) -> str | None:
    """Return one line that names an exception group and its exceptions.

    An example is ``ExceptionGroup: several (2 sub-exceptions): ValueError: one; KeyError: 'two'``. Return None if the
    last traceback is not that of a group.
    """
    start = next((i for i in range(len(lines) - 1, -1, -1) if _GROUP.match(lines[i])), None)
    if start is None:
        return None
    group = ""
    held: list[str] = []
    wanted = True  # whether the next line that is not a frame names an exception
    for line in lines[start + 1 :]:
        if _SEPARATOR.match(line):
            wanted = True
        elif wanted and (found := _IN_GROUP.match(line)) is not None:
            wanted = False
            if not group:
                group = found[1]
            elif not _SUMMARY.search(found[1]):
                held.append(found[1])
    return f"{group}: {'; '.join(held)}" if held else group or None


def _lines(tail: bytes | str) -> list[str]:
    """Split text into lines. For a line that a progress bar has redrawn with ``\\r``, return the text that was visible
    last.
    """
    text = tail.decode("utf-8", "replace") if isinstance(tail, bytes) else tail
    return [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")]


def _last_exception(lines: list[str]) -> tuple[int, int] | None:
    start = next((i for i in range(len(lines) - 1, -1, -1) if _HEADER.match(lines[i])), None)
    if start is None:
        return None
    if "|" in lines[start]:  # inside an exception group, whose header names the group
        start = next((i for i in range(start, -1, -1) if _GROUP.match(lines[i])), start)
    end = _end(lines, start)
    while (before := _chained_before(lines, start)) is not None:
        start = before
    return start, end


def _end(lines: list[str], start: int) -> int:
    """Return the index after the last line of a traceback: after its frames and the exception's message.

    Args:
        lines: The lines of the output.
        start: The index of the traceback's header.
    """
    grouped = lines[start].lstrip().startswith("+")
    i = start + 1
    while i < len(lines) and (lines[i].startswith(" ") or (not lines[i] and not grouped and _goes_on(lines, i))):
        i += 1
    if grouped:
        return i
    return _message_end(lines, i)


def _goes_on(lines: list[str], i: int) -> bool:
    """Return whether a traceback continues after its empty line ``i``. Such a line is the source line of a frame."""
    return i + 1 < len(lines) and lines[i + 1].startswith("  ")


def _message_end(lines: list[str], first: int) -> int:
    """Return the index after the last line of an exception's message, which starts at the line ``first``.

    If only a few lines follow, all of them belong to the message. Otherwise only the first paragraph belongs to the
    message.
    """
    end = len(lines)
    while end > first and not lines[end - 1].strip():
        end -= 1
    if end - first <= _MESSAGE_LINES:
        return end
    blank = next((i for i in range(first, end) if not lines[i].strip()), end)
    # TensorFlow prints "Graph execution error:", then the error itself
    if blank == first + 1 and lines[first].endswith(":"):
        return first + _MESSAGE_LINES
    return min(blank, first + _MESSAGE_LINES)


def _chained_before(lines: list[str], start: int) -> int | None:
    """Return the index of the header of the exception that preceded the exception at ``start``.

    Return None if the two exceptions are not chained.
    """
    i = start - 1
    while i >= 0 and not lines[i].strip():
        i -= 1
    if i < 0 or not lines[i].strip(" |").startswith(_CHAIN):
        return None
    for j in range(i - 1, -1, -1):
        if _HEADER.match(lines[j]) and "|" not in lines[j]:
            return j
    return None


def _last_syntax_error(lines: list[str]) -> tuple[int, int] | None:
    for i in range(len(lines) - 1, -1, -1):
        if _SYNTAX_ERROR.match(lines[i]):
            start = i
            while start > 0 and lines[start - 1].startswith("  "):
                start -= 1
            if start < i and _SYNTAX_PLACE.match(lines[start]) and (start == 0 or not _HEADER.match(lines[start - 1])):
                return start, _message_end(lines, i)
            return None
    return None


def _last_fatal(lines: list[str]) -> tuple[int, int] | None:
    start = next((i for i in range(len(lines) - 1, -1, -1) if _FATAL.match(lines[i])), None)
    return (start, _message_end(lines, start)) if start is not None else None
