"""The process that searches lines for metrics; :mod:`estimators.supervisor.matching` starts it, and ends it when it
hangs.

Python's regular expressions may take longer than anybody waits (``(a+)+$``), and nothing can interrupt them. So they
run here. Standard input is a connection. It brings ``patterns`` once, then each ``search``: lines, and which patterns
to leave out; for each of the others one ``found`` goes back, in their order, with the lines in which the pattern was
found and what its first group caught.
"""

from __future__ import annotations

import importlib
import re
import socket
import sys
from collections.abc import Callable
from typing import Any

from container.system.connection import BlockingConnection

#: The longest message in bytes: a piece of output may have 8 MiB, and each byte of it six in JSON.
LIMIT = 64 << 20
#: A number is never longer; what is caught beyond is cut, in characters.
CAUGHT_LIMIT = 400

Search = Callable[[str], str | None]


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
                caught = [(number, found) for number, line in enumerate(lines) if (found := search(line)) is not None]
                connection.send({"op": "found", "found": [(number, found[:CAUGHT_LIMIT]) for number, found in caught]})
    return 0


def _backtracking(pattern: str) -> Search:
    search = re.compile(pattern).search

    def find(line: str) -> str | None:
        match = search(line)
        return match.group(1) if match is not None else None

    return find


def _linear(pattern: str) -> Search:
    re2: Any = importlib.import_module("re2")  # an extra, without types
    # Bytes, since it counts in them; text would be counted over for every match.
    search = re2.compile(pattern.encode()).search

    def find(line: str) -> str | None:
        match = search(line.encode())
        caught = match.group(1) if match is not None else None
        return caught.decode() if caught is not None else None

    return find


if __name__ == "__main__":
    sys.exit(main())
