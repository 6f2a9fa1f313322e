"""Lines of JSON between the supervisor, the driver and the hosts. Pure."""

from __future__ import annotations

import json
from typing import Any

Message = dict[str, Any]

#: The longest line in bytes; a worker's environment is far shorter.
LINE_LIMIT = 1 << 20


def encode(operation: str, **values: Any) -> bytes:
    """One message as a line."""
    return json.dumps({"op": operation, **values}, separators=(",", ":")).encode() + b"\n"


def take(buffer: bytearray) -> list[Message]:
    """Take the whole messages off the front of ``buffer``.

    Raises:
        ValueError: a line is no message, or longer than :data:`LINE_LIMIT`.
    """
    found: list[Message] = []
    while (end := buffer.find(b"\n")) >= 0:
        line = bytes(buffer[:end])
        del buffer[: end + 1]
        message = json.loads(line)
        if not isinstance(message, dict) or not isinstance(message.get("op"), str):
            raise ValueError(f"not a message: {line[:200]!r}")
        found.append(message)
    if len(buffer) > LINE_LIMIT:
        raise ValueError(f"a message of over {LINE_LIMIT} bytes")
    return found


def worker_name(host: str, slot: int, number: int) -> str:
    """``algo-2.0.1``: the second worker that there has been in the first slot of a host."""
    return f"{host}.{slot}.{number}"


def split_worker(name: str) -> tuple[str, int, int]:
    """The host, slot and number of a worker's name.

    Raises:
        ValueError: it is none.
    """
    host, slot, number = name.rsplit(".", 2)
    return host, int(slot), int(number)
