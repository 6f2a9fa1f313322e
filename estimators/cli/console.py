"""Writing to the terminal and to pipes."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Sequence
from typing import Any

from estimators.job import strict_json
from estimators.job.text import columns_of, fit_columns, padded, visible

_STATUS_COLOURS = {"Completed": "32", "Failed": "31", "Stopped": "33", "Stopping": "33", "InProgress": "36"}


def say(text: str) -> None:
    """A line for people, on standard error, so that standard output can be piped."""
    from estimators.client.printing import write_text

    with contextlib.suppress(OSError):  # there is nobody whom that could be told
        write_text(sys.stderr, f"fleetfit: {visible(text)}\n")


def out(text: str) -> None:
    """Results, on standard output; text that the terminal's encoding cannot show is replaced, not fatal."""
    from estimators.client.printing import write_text

    text = visible(text, colours=True)
    write_text(sys.stdout, text if text.endswith("\n") else text + "\n")


def open_streams() -> None:
    """Have what is written to a closed standard output or standard error go nowhere.

    Otherwise the next file that is opened would be taken for it by every program that is started.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - as long as the process


def out_json(value: Any) -> None:
    """A result as JSON."""
    out(strict_json.dumps(value, indent=2))


def coloured() -> bool:
    """Return whether standard output should have colours."""
    from estimators.client.printing import wants_colour

    return wants_colour(sys.stdout)


def paint_status(text: str, status: str, colour: bool) -> str:
    """Return a status in its colour."""
    code = _STATUS_COLOURS.get(status)
    return f"\x1b[{code}m{text}\x1b[0m" if colour and code else text


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, status_column: int | None = None) -> str:
    """Columns for people; on a terminal the last one is cut to the width, in a pipe nothing is.

    Args:
        header: Titles.
        rows: Texts, as many as titles.
        status_column: The column whose text begins with a job's status, to be coloured.
    """
    colour = coloured()
    limit = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    lines: list[str] = []
    for number, cells in enumerate(padded((header, *rows))):
        line = "  ".join(cells).rstrip()
        if limit is not None and columns_of(line) > limit:
            line = fit_columns(line, limit - 1) + "…"
        if number == 0:
            line = f"\x1b[1m{line}\x1b[0m" if colour else line
        elif status_column is not None and colour:
            text = cells[status_column].rstrip()
            line = line.replace(text, paint_status(text, text.split(" ", 1)[0], True), 1)
        lines.append(line)
    return "\n".join(lines) + "\n"


def when(seconds: float | None) -> str:
    """Return a time of day in the local zone: ``2026-11-21 06:17:00``; ``-`` for None."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds)) if seconds else "-"


def confirm(question: str) -> bool:
    """Ask a question with "no" as its default; where nobody can be asked the answer is no."""
    if not sys.stdin or not sys.stdin.isatty():
        return False
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def close_output() -> None:
    """Have nothing more written to a standard output that nobody reads, at exit included."""
    with contextlib.suppress(OSError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
