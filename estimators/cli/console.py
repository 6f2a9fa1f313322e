"""Write to the terminal and to pipes."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import time
from collections.abc import Sequence
from typing import Any

from estimators.job import strict_json
from estimators.job.text import columns_of, visible
from estimators.results.tables import terminal_width

_STATUS_STYLES = {
    "Completed": "green", "Failed": "red", "Stopped": "yellow", "Stopping": "yellow", "InProgress": "cyan",
}  # fmt: skip
_CODES = {"green": 32, "red": 31, "yellow": 33, "cyan": 36}
#: Matches a state in a cell, which two spaces separate from other cells.
_STATE = re.compile(rf"(?<=  )(?:{'|'.join(_STATUS_STYLES)})(?=  |$)", re.MULTILINE)
#: Smallest age in seconds that is shown in each unit. Ages of at least `_DATE_FROM_S` seconds are shown as a date.
_UNITS = ((60.0, "min"), (3600.0, "h"), (86_400.0, "d"))
_DATE_FROM_S = 30 * 86_400.0


def say(text: str) -> None:
    """Print a message to standard error. Standard output, which can be piped, contains only results."""
    from estimators.client import printing

    printing.say(text)


def out(text: str) -> None:
    """Print results to standard output. Characters that the encoding of standard output lacks are replaced."""
    from estimators.client.printing import write_text

    text = visible(text, colours=True)
    write_text(sys.stdout, text if text.endswith("\n") else text + "\n")


def open_streams() -> None:
    """Redirect a closed standard input, output or error to ``/dev/null``.

    Otherwise the next opened file would have the descriptor of a standard stream, and child processes would write to
    this file.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - as long as the process


def out_json(value: Any) -> None:
    """Print a result as JSON."""
    out(strict_json.dumps(value, indent=2))


def coloured() -> bool:
    """Return whether to print colours to standard output."""
    from estimators.client.printing import wants_colour

    return wants_colour(sys.stdout)


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    status_column: int | None = None,
    names: int = 0,
    optional: Sequence[int] = (),
    paragraphs: bool = False,
) -> str:
    """Return a table as text.

    On a terminal, the table is at most as wide as the terminal. If the terminal is too narrow, optional columns are
    left out. If this does not suffice, names that are longer than half of the terminal are folded, and the other
    columns are cut with an ellipsis. If the output is not a terminal, no column is cut.

    Args:
        header: The titles of the columns.
        rows: The rows. Each row has one text for each title.
        status_column: The index of the column whose text begins with a job's status. The status is coloured.
        names: The index of the column of the names.
        optional: The indices of the columns that may be left out. The least useful column is first.
        paragraphs: Whether the last column contains sentences, which are wrapped between words.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    width, shown = terminal_width(), list(range(len(header)))
    for place in optional:
        wanted = sum(2 + max(columns_of(row[one]) for row in (header, *rows)) for one in shown) - 2
        if width is not None and wanted > width:
            shown.remove(place)
    divided, name_width = [[visible(row[names])] for row in rows], None
    if width is not None:
        others = sum(2 + max(columns_of(row[place]) for row in (header, *rows)) for place in shown if place != names)
        room = max(width - others, width // 2)
        divided = [_divided(name, room) for [name] in divided]
        name_width = min(max([12, *(columns_of(line) for lines in divided for line in lines)]), room)
    made = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for place in shown:
        named = place == names
        made.add_column(
            Text(header[place]),
            no_wrap=not named and not (paragraphs and place == shown[-1]),
            overflow="fold" if named else "ellipsis",
            width=name_width if named else None,
            min_width=12 if named else 4,
        )
    for row, lines in zip(rows, divided, strict=True):
        cells = [Text("\n".join(lines) if place == names else visible(row[place])) for place in shown]
        if status_column is not None:
            cells[shown.index(status_column)].stylize(_STATUS_STYLES.get(row[status_column].split(" ", 1)[0], ""))
        made.add_row(*cells)
    colour = coloured()
    console = Console(
        file=io.StringIO(), width=width or 100_000, force_terminal=colour, color_system="standard" if colour else None
    )
    with console.capture() as captured:
        console.print(made)
    return "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())


def _divided(name: str, room: int) -> list[str]:
    """Return the lines of a name. A name that is wider than ``room`` columns is divided after hyphens."""
    lines = [""]
    for part in [name] if columns_of(name) <= room else re.findall("[^-]*-+|[^-]+", name):
        if lines[-1] and columns_of(lines[-1] + part) > room:
            lines.append("")
        lines[-1] += part
    return lines


def with_states_coloured(text: str) -> str:
    """Colour the states of jobs in a text: in the cells of a table, and at the end of a title.

    If standard output shows no colours, return the text unchanged.
    """
    if not coloured():
        return text
    return _STATE.sub(lambda found: f"\x1b[{_CODES[_STATUS_STYLES[found[0]]]}m{found[0]}\x1b[0m", text)


def when(seconds: float | None) -> str:
    """Return a time as text in the local time zone, such as ``2026-11-21 06:17:00``. Return ``-`` for None."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds)) if seconds else "-"


def ago(seconds: float | None) -> str:
    """Return a past time as an age, such as ``3 min ago``.

    Return the date if the time is more than 30 days ago, and ``-`` for None.
    """
    if not seconds:
        return "-"
    since = time.time() - seconds
    if since >= _DATE_FROM_S:
        return time.strftime("%Y-%m-%d", time.localtime(seconds))
    for unit, name in reversed(_UNITS):
        if since >= unit:
            return f"{since // unit:.0f} {name} ago"
    return "just now"


def confirm(question: str) -> bool:
    """Ask a yes/no question, and return whether the answer is yes. The default answer is no.

    Return False without a question if standard input is not a terminal.
    """
    if not sys.stdin or not sys.stdin.isatty():
        return False
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def close_output() -> None:
    """Redirect standard output to ``/dev/null``, for use after a write to standard output has failed.

    Otherwise the flush at the exit of this process would fail, too.
    """
    with contextlib.suppress(OSError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
