"""A comparison as HTML that takes its colours from the page. Pure, but for the plots."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from estimators.comparing.comparison import Comparison

_CELL = "padding:3px 10px;text-align:right;white-space:nowrap;border-bottom:1px solid rgba(128,128,128,.35)"
_FIRST = _CELL.replace("text-align:right", "text-align:left")


def comparison_html(comparison: Comparison) -> str:
    """The table, its notes and the warnings."""
    if not comparison.groups:
        return '<div class="fleetfit-comparison">nothing to compare</div>'
    head, rows = comparison.rows()
    cells = "".join(f'<th style="{_FIRST if n == 0 else _CELL}">{_e(text)}</th>' for n, text in enumerate(head))
    body = ""
    for row, group in zip(rows, comparison.groups, strict=True):
        style = "" if group.completed else ' style="opacity:.7"'
        columns = "".join(
            f'<td style="{_FIRST if n == 0 else _CELL}">{_e(text)}</td>' for n, text in enumerate(row)
        )  # fmt: skip
        body += f"<tr{style}>{columns}</tr>"
    notes = "".join(f"<li>{_e(line)}</li>" for line in comparison.notes())
    warned = "".join(f'<div style="font-weight:600">⚠ {_e(text)}</div>' for text in comparison.warnings)
    return (
        '<div class="fleetfit-comparison" style="overflow-x:auto">'
        f'{warned}<table style="border-collapse:collapse"><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>'
        f"{f'<ul>{notes}</ul>' if notes else ''}</div>"
    )


def _e(text: str) -> str:
    return html.escape(text)
