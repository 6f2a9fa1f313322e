"""A comparison as HTML that takes its colours from the page. Pure, but for the plots."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from estimators.job.text import visible

if TYPE_CHECKING:
    from estimators.results.comparison.comparison import Comparison

_CELL = "padding:3px 8px;text-align:right;white-space:nowrap;border-bottom:1px solid rgba(128,128,128,.35)"
_FIRST = _CELL.replace("text-align:right;white-space:nowrap", "text-align:left;max-width:18em;overflow-wrap:anywhere")
#: Titles may wrap, so that more columns are seen at once.
_HEAD = _CELL.replace("white-space:nowrap", "white-space:normal;vertical-align:bottom;max-width:7em")
#: A bar that is there to be seen, on pages and systems too that show theirs only while one scrolls.
_SCROLLBAR = (
    "<style>.fleetfit-table{overflow-x:auto;scrollbar-width:thin;scrollbar-color:rgba(128,128,128,.7) transparent}"
    ".fleetfit-table::-webkit-scrollbar{height:10px}"
    ".fleetfit-table::-webkit-scrollbar-thumb{background:rgba(128,128,128,.7);border-radius:5px}</style>"
)


def comparison_html(comparison: Comparison) -> str:
    """The table, its notes and the warnings."""
    if not comparison.groups:
        return '<div class="fleetfit-comparison">nothing to compare</div>'
    head, rows = comparison.rows()
    cells = "".join(f'<th style="{_FIRST if n == 0 else _HEAD}">{_e(text)}</th>' for n, text in enumerate(head))
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
        f'{_SCROLLBAR}<div class="fleetfit-comparison">{warned}<div class="fleetfit-table">'
        f'<table style="border-collapse:collapse"><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table></div>'
        f"{f'<ul>{notes}</ul>' if notes else ''}</div>"
    )


def _e(text: str) -> str:
    return html.escape(visible(text))
