"""The process that searches lines for metrics; :mod:`estimators.supervisor.matching` starts it, and ends it when it
hangs.

Python's regular expressions may take longer than anybody waits (``(a+)+$``), and nothing can interrupt them. So they
run here. Standard input brings frames, standard output takes them: four bytes of length, then JSON. The first frame
has the patterns; each further one has lines, and which patterns to leave out; for each of the others one frame comes
back, in their order, with the lines in which the pattern was found and what its first group caught.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import struct
import sys
from collections.abc import Callable
from typing import Any

SIZE = struct.Struct("<I")

#: A number is never longer; what is caught beyond is cut, in characters.
CAUGHT_LIMIT = 400

Search = Callable[[str], str | None]


def main() -> int:
    """Answer until standard input ends."""
    patterns = _receive()
    if patterns is None:
        return 0
    searches = [_linear(pattern["re2"]) if "re2" in pattern else _backtracking(pattern["re"]) for pattern in patterns]
    while (request := _receive()) is not None:
        lines, left_out = request["lines"], set(request["left_out"])
        for index, search in enumerate(searches):
            if index not in left_out:
                caught = [(number, found) for number, line in enumerate(lines) if (found := search(line)) is not None]
                _send([(number, found[:CAUGHT_LIMIT]) for number, found in caught])
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


def _receive() -> Any:
    head = _read(SIZE.size)
    return json.loads(_read(SIZE.unpack(head)[0])) if len(head) == SIZE.size else None


def _read(size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size and (part := os.read(0, size - len(parts))):
        parts += part
    return bytes(parts)


def _send(value: Any) -> None:
    data = json.dumps(value).encode()
    rest = memoryview(SIZE.pack(len(data)) + data)
    while rest:
        rest = rest[os.write(1, rest) :]


if __name__ == "__main__":
    sys.exit(main())
