"""What a terminal shows of what was written to it."""

from __future__ import annotations

import re


def screen(text: str) -> list[str]:
    """What a terminal would show: newline, carriage return, cursor up, clear to the end."""
    rows, row = [""], 0
    for token in re.findall(r"\x1b\[\d*[A-Za-z]|\n|\r|[^\x1b\n\r]+", text):
        if token == "\n":
            row += 1
            if row == len(rows):
                rows.append("")
        elif token == "\r":
            pass
        elif token.endswith("A"):
            row -= int(token[2:-1])
        elif token.endswith("J"):
            rows[row:] = [""]
        elif token.startswith("\x1b"):
            pass
        else:
            rows[row] += token
    return rows[:-1] if rows[-1] == "" else rows
