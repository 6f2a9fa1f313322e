"""Format tables as text. A table in a pipe is complete. A table on a terminal is not wider than the terminal."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence

from estimators.job.text import columns_of, padded

#: The least width that is assumed for a terminal, in columns.
_LEAST = 60
_GAP = 2


def terminal_width() -> int | None:
    """Return the width of standard output's terminal, in columns. Return None for a pipe or a file."""
    if sys.stdout is None or not sys.stdout.isatty():
        return None
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
    more = indent + "  "
    return [
        line for text in texts for line in textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=more)
    ]


def _typeset(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [(" " * _GAP).join(cells).rstrip() for cells in padded((head, *rows), right=True)]
    return "\n".join([lines[0], "─" * max(map(columns_of, lines)), *lines[1:]])


def _narrow(head: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> str:
    """Return a transposed table. If the title of its only row is too long, the title is wrapped above the table."""
    if _width((head, *rows)) <= width or len(head) != 2:
        return _typeset(head, rows)
    return "\n".join([*textwrap.wrap(head[1], width), _typeset(("", ""), rows).lstrip("\n")])


def _width(rows: Sequence[Sequence[str]]) -> int:
    columns = list(zip(*rows, strict=True))
    return sum(max(map(columns_of, column)) for column in columns) + _GAP * (len(columns) - 1)


def _transposed(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[list[str]]:
    return [list(row) for row in zip(head, *rows, strict=True)]
