"""Format tables as text. A table in a pipe is complete. A table on a terminal is not wider than the terminal."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import IO

from estimators.job.text import columns_of, padded

#: The least width that is assumed for a terminal, in columns.
_LEAST = 60
_GAP = 2
#: Matches a command in a sentence, which stays on one line so that it can be copied.
_COMMAND = re.compile(r"`[^`]+`")


def terminal_width(stream: IO[str] | None = None) -> int | None:
    """Return the width of a stream's terminal, in columns. Return None for a pipe, a file or a closed stream.

    Args:
        stream: The stream. The default is standard output.
    """
    stream = stream if stream is not None else sys.stdout
    try:
        if stream is None or not stream.isatty():
            return None
    except (AttributeError, ValueError, OSError):  # an object that only has write(), or a closed stream
        return None
    if "COLUMNS" not in os.environ:
        with contextlib.suppress(AttributeError, ValueError, OSError):
            return max(_LEAST, os.get_terminal_size(stream.fileno()).columns)
    return max(_LEAST, shutil.get_terminal_size().columns)


def numbers(head: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None) -> str:
    """Return a table of numbers as text. The first column has the names of the rows.

    Args:
        head: The titles of the columns.
        rows: The texts of the cells. Each row has as many cells as there are titles.
        width: The largest width of the table, in columns of a terminal. None for no limit. A wider table is transposed.
            If the transposed table is too wide, it is divided into several tables, so that no number is cut.
    """
    if width is None or not rows or _width((head, *rows)) <= width:
        return _typeset(head, rows)
    parts: list[list[Sequence[str]]] = []
    for row in rows:
        if not parts or _width(_transposed(head, [*parts[-1], row])) > width:
            parts.append([])
        parts[-1].append(row)
    return "\n\n".join(_narrow(titles, lines, width) for part in parts for titles, *lines in [_transposed(head, part)])


def paragraphs(texts: Iterable[str], width: int | None, indent: str = "") -> list[str]:
    """Return the lines of texts that are wrapped at a width.

    Args:
        texts: The texts.
        width: The width at which each text is wrapped between words. None to wrap no text.
        indent: The indentation of the first line of each text.
    """
    if width is None:
        return [indent + text for text in texts]
    return [line for text in texts for line in _wrapped(text, width, indent, indent + "  ")]


def prose(text: str, width: int | None) -> str:
    """Return a text whose long lines are wrapped between words, like sentences.

    Lines that begin with a space, such as code, are not wrapped. Paths and commands are not divided, so that they can
    be copied.

    Args:
        text: The lines.
        width: The width in columns. None to wrap no line.
    """
    return (
        text
        if width is None
        else "\n".join(
            "\n".join(_wrapped(line, width, "", "  " if line[:2] == "- " else "")) if line[:1].strip() else line
            for line in text.split("\n")
        )
    )


def _wrapped(text: str, width: int, first: str, more: str) -> list[str]:
    kept = _COMMAND.sub(lambda command: command[0].replace(" ", "\0"), text)
    lines = textwrap.wrap(
        kept, width, initial_indent=first, subsequent_indent=more, break_long_words=False, break_on_hyphens=False
    )
    return [line.replace("\0", " ") for line in lines]


def _typeset(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [(" " * _GAP).join(cells).rstrip() for cells in padded((head, *rows), right=True)]
    return "\n".join([lines[0], "─" * max(map(columns_of, lines)), *lines[1:]])


def _narrow(head: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> str:
    """Return a transposed table as text. If the table has only one column of values and is wider than ``width``, the
    title of this column is wrapped above the table.

    Args:
        head: The titles of the columns of the transposed table.
        rows: The rows of the transposed table.
        width: The largest width of the table, in columns of a terminal.
    """
    if _width((head, *rows)) <= width or len(head) != 2:
        return _typeset(head, rows)
    return "\n".join([*textwrap.wrap(head[1], width), _typeset(("", ""), rows).lstrip("\n")])


def _width(rows: Sequence[Sequence[str]]) -> int:
    columns = list(zip(*rows, strict=True))
    return sum(max(map(columns_of, column)) for column in columns) + _GAP * (len(columns) - 1)


def _transposed(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[list[str]]:
    return [list(row) for row in zip(head, *rows, strict=True)]
