"""Prepare text for terminals: remove control sequences, measure widths in columns, align tables."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

_SPACES = {ord("\t"): " ", ord("\n"): " "}
_RESET = "\x1b[0m"
#: Control sequences (CSI, strings such as OSC, others) and control characters of terminals. Backspaces are not
#: included, because :func:`visible` must apply them.
_ORDERS = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]+[0-~]|\x1b[0-~]|[\x00-\x07\x0b-\x1f\x7f-\x9f]"
)
#: Control sequences that only change the colour or style of text.
_LOOKS = re.compile(r"\x1b\[[0-9;:]*m")


def visible(text: str, *, colours: bool = False) -> str:
    """Return the text without control sequences of terminals, and without characters that are overwritten after a
    backspace.

    Args:
        text: Lines of text. Tabs and newlines are kept.
        colours: Whether to keep the sequences for colours and other styles. The styles are reset at the end of the
            text. The sequences in a text with backspaces are always removed.
    """
    rubbed = "\b" in text
    if not rubbed and _ORDERS.search(text) is None:
        return text
    if rubbed or not colours:
        text = _ORDERS.sub("", text)
        return "\n".join(map(_overwritten, text.split("\n"))) if rubbed else text
    kept = _ORDERS.sub(lambda match: match[0] if _LOOKS.fullmatch(match[0]) else "", text)
    last = kept.rfind("\x1b")
    return kept if last < 0 or kept.startswith((_RESET, "\x1b[m"), last) else kept + _RESET


def _overwritten(line: str) -> str:
    """Return a line as a terminal shows it: after a backspace, the next character overwrites the previous one."""
    shown: list[str] = []
    place = 0
    for character in line:
        if character == "\b":
            place = max(0, place - 1)
        else:
            shown[place : place + 1] = [character]
            place += 1
    return "".join(shown)


def columns_of(text: str) -> int:
    """Return the number of terminal columns that a text occupies."""
    return len(text) if text.isascii() else sum(map(_width, text))


def fit_columns(text: str, columns: int) -> str:
    """Return the text without escape sequences, cut to at most ``columns`` columns of a terminal."""
    plain = visible(text).translate(_SPACES)
    if plain.isascii():
        return plain[: max(0, columns)]
    used = 0
    for index, character in enumerate(plain):
        used += _width(character)
        if used > columns:
            return plain[:index]
    return plain


def fit_parts(text: str, columns: int) -> str:
    """Return as many parts of a text as fit in ``columns`` columns of a terminal. The parts are separated by " · ".

    A first part that is too long is cut, and ends with an ellipsis.
    """
    parts = text.split(" · ")
    while len(parts) > 1 and columns_of(" · ".join(parts)) > columns:
        parts.pop()
    text = " · ".join(parts)
    return text if columns_of(text) <= columns else fit_columns(text, columns - 1) + "…"


def padded(rows: Sequence[Sequence[str]], *, right: bool = False) -> list[list[str]]:
    """Return the rows with each text padded to the width of its column.

    Args:
        rows: The rows of texts. Each row has the same number of texts.
        right: Whether to align all columns except the first column to the right, as for numbers.
    """
    widths = [max(map(columns_of, column)) for column in zip(*rows, strict=True)]
    return [
        [
            " " * space + text if right and index else text + " " * space
            for index, (text, width) in enumerate(zip(row, widths, strict=True))
            for space in (width - columns_of(text),)
        ]
        for row in rows
    ]


def _width(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
