"""Encode and decode the lines that a host's toolkit prints: the ranks' output with a prefix, and events.

Output and events are written to one stream, so that logs, timelines, metrics and failure reasons are transferred in the
same way on every backend, including CloudWatch. A line has one of these forms:

* ``[algo-1:rank 0] text`` - a piece of a process's output up to and including its terminator (``\\n``, ``\\r`` or
  ``\\r\\n``), which also ends the printed line;
* ``[algo-1:rank 0]+text`` - a piece without its own terminator, because the process ended, or because the piece is one
  part of a very long line. The ``\\n`` that ends the printed line is not part of the output;
* ``[algo-1] text`` - the toolkit's own output;
* ``fleetfit-event {json}`` - an :class:`Event`;
* ``fleetfit-alive`` - a heartbeat, on local backends only.

A script cannot forge any of these lines, because everything that it prints gets a prefix. The bytes of the output are
not changed.
"""

from __future__ import annotations

import dataclasses
import json
import re
import time
from typing import Any

from container.contract.frozen import dataclass

EVENT_MARK = b"fleetfit-event "

#: A toolkit on a local backend prints this line regularly; the line is not kept in logs.
HEARTBEAT = b"fleetfit-alive\n"

#: A piece of output without a terminator is cut at this many bytes, to limit the memory.
PIECE_LIMIT = 8 << 20
#: Maximum size of a printed line in bytes: a piece of maximum size, its prefix, and a newline.
LINE_LIMIT = PIECE_LIMIT + 4096

#: Kinds of events for detecting and explaining hangs. The first reports that a rank has made progress, and the second
#: reports the position of each rank in the code.
PROGRESS, STACKS = "progress", "stacks"
#: Kind of the event with which a toolkit reports that it has received SIGTERM.
TERMINATED = "terminated"
#: Kinds of events that only the supervisor needs; they are not recorded.
UNRECORDED = (PROGRESS, TERMINATED)

_PREFIX = re.compile(rb"\[([A-Za-z0-9._-]+)(?::([^\]\[]{1,64}))?\]([ +])")
_TERMINATOR = re.compile(rb"\r\n|\n|\r")


@dataclass(frozen=True, kw_only=True)
class Event:
    """An event on one host.

    Attributes:
        kind: The kind of event, such as ``phase``, ``importer``, ``metric``, ``process_started``, ``process_ended``,
            ``exception``, ``failure``, ``checkpoint``, ``warning`` or ``resources``.
        host: The host that reports the event.
        time_ns: Time of the event by the host's clock, in nanoseconds since 1970.
        rank: The rank that the event is about, or None.
        attempt: Number of the job's attempt, from 0.
        generation: Number of the cluster's generation (see :mod:`container.contract.membership`), from 0.
        data: The other data of the event. The keys depend on the kind of event.
    """

    kind: str
    host: str
    time_ns: int = dataclasses.field(default_factory=time.time_ns)
    rank: int | None = None
    attempt: int = 0
    generation: int = 0
    data: dict[str, Any] = dataclasses.field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the event as a JSON-serialisable dict."""
        return dataclasses.asdict(self)

    def to_line(self) -> bytes:
        """Encode the event as a line that begins with :data:`EVENT_MARK` and ends with a newline."""
        return EVENT_MARK + json.dumps(self.to_dict(), separators=(",", ":")).encode() + b"\n"

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Event:
        """Create an event from the result of :meth:`to_dict`. Unknown keys, which a later version may have written, are
        ignored.

        Raises:
            ValueError: ``values`` does not describe an event.
        """
        if not isinstance(values, dict) or not isinstance(values.get("kind"), str):
            raise ValueError(f"not an event: {values!r}")
        known = {field.name for field in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in known})


@dataclass(frozen=True)
class Piece:
    """A piece of a process's output: a line with its terminator, or a part of a line without a terminator.

    Attributes:
        host: The host that printed the output.
        process: The name of the process, such as ``rank 3`` or ``ps``. None for the toolkit's own output.
        data: The unchanged bytes of the output, including the terminator.
    """

    host: str
    process: str | None
    data: bytes

    @property
    def rank(self) -> int | None:
        """Return the number of the rank. Return None if the process is not a rank."""
        return rank_of(self.process)


def rank_of(process: str | None) -> int | None:
    """Return the number of the rank in a process's name, such as 3 for ``rank 3``. Return None for any other name."""
    if process is not None and process.startswith("rank ") and process[5:].isdecimal():
        return int(process[5:])
    return None


def prefix(host: str, process: str | None) -> str:
    """Return the prefix of a printed line, such as ``[algo-1:rank 0]``, without the character that follows the
    prefix.
    """
    return f"[{host}:{process}]" if process is not None else f"[{host}]"


def split_pieces(buffer: bytearray, *, final: bool = False, limit: int = PIECE_LIMIT) -> list[bytes]:
    """Remove the complete pieces from the beginning of ``buffer``, and return them.

    Args:
        buffer: The output of one process that was read, but not printed yet. An incomplete piece remains in the buffer.
        final: Whether the output has ended. If true, remaining bytes without a terminator are also a piece.
        limit: Maximum size of a piece in bytes. A longer piece is divided.

    Returns:
        The pieces, including their terminators. The parts of a divided piece, and the remaining bytes at the end, have
        no terminator.
    """
    pieces: list[bytes] = []
    start = 0
    size = len(buffer)
    # A long line arrives in many reads. Searching for one byte is a hundred times faster than matching the pattern.
    terminated = buffer.find(b"\n") >= 0 or buffer.find(b"\r") >= 0
    for match in _TERMINATOR.finditer(buffer) if terminated else ():
        end = match.end()
        if match.group() == b"\r" and end == size and not final:
            break  # "\r\n" may have been split: wait for the next byte
        while end - start > limit:
            pieces.append(bytes(buffer[start : start + limit]))
            start += limit
        pieces.append(bytes(buffer[start:end]))
        start = end
    while size - start > limit:
        pieces.append(bytes(buffer[start : start + limit]))
        start += limit
    if final and start < size:
        pieces.append(bytes(buffer[start:]))
        start = size
    del buffer[:start]
    return pieces


def encode_piece(tag: bytes, piece: bytes) -> bytes:
    """Encode a piece as a printed line.

    Args:
        tag: The prefix of the line (see :func:`prefix`), as bytes.
        piece: The piece.
    """
    if piece.endswith((b"\n", b"\r")):
        return tag + b" " + piece
    return tag + b"+" + piece + b"\n"


def decode_line(line: bytes) -> Piece | Event | bytes:
    """Decode one printed line.

    Args:
        line: The line with its terminator, as :func:`split_pieces` returns it.

    Returns:
        A piece of output or an event. Any other line is returned unchanged, because a program in an image without
        fleetfit's toolkit prints lines without a prefix.
    """
    if line.startswith(EVENT_MARK):
        try:
            return Event.from_dict(json.loads(line[len(EVENT_MARK) :]))
        except (ValueError, TypeError, RecursionError):
            return line
    match = _PREFIX.match(line)
    if match is None:
        return line
    host, process, kind = match.groups()
    data = line[match.end() :]
    if kind == b"+" and data.endswith(b"\n"):
        data = data[:-1]
    return Piece(host.decode(), process.decode("utf-8", "replace") if process is not None else None, data)
