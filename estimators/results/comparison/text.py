"""A comparison as text. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from estimators.results.comparison.comparison import Comparison


def text_table(comparison: Comparison) -> str:
    """The table, what its marks mean and why runs failed."""
    if not comparison.groups:
        return "nothing to compare"
    head, rows = comparison.rows()
    widths = [max(len(row[index]) for row in (head, *rows)) for index in range(len(head))]
    lines = []
    for row in (head, *rows):
        cells = [row[0].ljust(widths[0]), *(text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "─" * max(map(len, lines)))
    return "\n".join([*lines, *(["", *comparison.notes()] if comparison.notes() else [])])
