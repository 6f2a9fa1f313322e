"""The process that searches lines for metrics; :mod:`estimators.supervisor.matching` starts it, and ends it when it
hangs.

Python's regular expressions may take longer than anybody waits (``(a+)+$``), and nothing can interrupt them. So they
run here. Standard input is a connection. It brings ``patterns`` once, then each ``search``: lines, and which patterns
to leave out; for each of the others one ``found`` goes back, in their order, with the lines in which the pattern was
found, what its first group caught, and what is in front of it and behind: see :class:`estimators.job.numbers.Caught`.
"""

from __future__ import annotations

import importlib
import re
import socket
import sys
from collections.abc import Callable
from typing import Any

from container.system.connection import BlockingConnection
from estimators.job.numbers import BESIDE_LIMIT

#: The longest message in bytes: a piece of output may have 8 MiB, and each byte of it six in JSON.
LIMIT = 64 << 20
#: A number is never longer; what is caught beyond is cut, in characters.
CAUGHT_LIMIT = 400

#: What a group caught, and what is in front of it and behind.
Search = Callable[[str], tuple[str, str, str] | None]


def main() -> int:
    """Answer until standard input ends."""
    connection = BlockingConnection(socket.socket(fileno=0), limit=LIMIT)
    searches: list[Search] = []
    while (message := connection.receive()) is not None:
        if message["op"] == "patterns":
            searches = [
                _linear(one["re2"]) if "re2" in one else _backtracking(one["re"]) for one in message["patterns"]
            ]
            continue
        lines, left_out = message["lines"], set(message["left_out"])
        for index, search in enumerate(searches):
            if index not in left_out:
                caught = [(number, *found) for number, line in enumerate(lines) if (found := search(line)) is not None]
                connection.send({"op": "found", "found": caught})
    return 0


def _backtracking(pattern: str) -> Search:
    search = re.compile(pattern).search

    def find(line: str) -> tuple[str, str, str] | None:
        match = search(line)
        if match is None or match.group(1) is None:
            return None
        start, end = match.span(1)
        after = line[end : end + BESIDE_LIMIT] if end == match.end() else ""
        return line[start : min(end, start + CAUGHT_LIMIT)], line[max(0, start - BESIDE_LIMIT) : start], after

    return find


def _linear(pattern: str) -> Search:
    re2: Any = importlib.import_module("re2")  # an extra, without types
    # Bytes, since it counts in them; text would be counted over for every match.
    search = re2.compile(pattern.encode()).search

    def find(line: str) -> tuple[str, str, str] | None:
        data = line.encode()
        match = search(data)
        if match is None or match.group(1) is None:
            return None
        start, end = match.span(1)
        pieces = (
            match.group(1),
            data[max(0, start - BESIDE_LIMIT) : start],
            data[end : end + BESIDE_LIMIT] if end == match.end() else b"",
        )
        caught, before, after = (piece.decode("utf-8", "ignore") for piece in pieces)
        return caught[:CAUGHT_LIMIT], before, after

    return find


if __name__ == "__main__":
    sys.exit(main())
