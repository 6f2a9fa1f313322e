"""The lines that a host's toolkit prints: the ranks' output, prefixed, and events.

One stream carries both, so that logs, timelines, metrics and reasons travel the same way on every backend, CloudWatch
included. A line is one of

* ``[algo-1:rank 0] text`` - a piece of a process's output up to and with its terminator (``\\n``, ``\\r`` or
  ``\\r\\n``, which ends the printed line too);
* ``[algo-1:rank 0]+text`` - a piece without a terminator of its own (the process ended, or the piece is one part of a
  very long line): the ``\\n`` that ends the printed line is not part of the output;
* ``[algo-1] text`` - the toolkit's own words;
* ``fleetfit-event {json}`` - an :class:`Event`;
* ``fleetfit-alive`` - a sign of life, on local backends only.

A script cannot forge any of them, since everything it prints gets a prefix. Bytes pass through unchanged.
"""

from __future__ import annotations

import dataclasses
import json
import re
import time
from typing import Any

EVENT_MARK = b"fleetfit-event "

#: A toolkit on a local backend prints this every now and then; it is not kept.
HEARTBEAT = b"fleetfit-alive\n"

#: A piece of output is cut when it grows beyond this many bytes without a terminator, to bound memory.
PIECE_LIMIT = 8 << 20
#: The longest printed line in bytes: such a piece, its prefix, and a newline.
LINE_LIMIT = PIECE_LIMIT + 4096

#: Kinds of events about a job that may hang: a rank makes progress; where each rank is.
PROGRESS, STACKS = "progress", "stacks"
#: A toolkit got SIGTERM.
TERMINATED = "terminated"
#: What the supervisor must know and nobody reads later.
UNRECORDED = (PROGRESS, TERMINATED)

_PREFIX = re.compile(rb"\[([A-Za-z0-9._-]+)(?::([^\]\[]{1,64}))?\]([ +])")
_TERMINATOR = re.compile(rb"\r\n|\n|\r")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened, on one host.

    Attributes:
        kind: ``phase``, ``importer``, ``metric``, ``process_started``, ``process_ended``, ``exception``, ``failure``,
            ``checkpoint``, ``warning``, ``resources`` …
        host: The host that says so.
        time_ns: When, in nanoseconds since the epoch, by that host's clock.
        rank: The rank it concerns, if any.
        attempt: Which start of the job, from 0.
        generation: Which membership, from 0.
        data: What else there is to say, by kind.
    """

    kind: str
    host: str
    time_ns: int = dataclasses.field(default_factory=time.time_ns)
    rank: int | None = None
    attempt: int = 0
    generation: int = 0
    data: dict[str, Any] = dataclasses.field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object of the event."""
        return dataclasses.asdict(self)

    def to_line(self) -> bytes:
        """Return the marked line, with its newline."""
        return EVENT_MARK + json.dumps(self.to_dict(), separators=(",", ":")).encode() + b"\n"

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Event:
        """Read the JSON object of an event; unknown keys of a later version are left out.

        Raises:
            ValueError: it is not an event.
        """
        if not isinstance(values, dict) or not isinstance(values.get("kind"), str):
            raise ValueError(f"not an event: {values!r}")
        known = {field.name for field in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in known})


@dataclasses.dataclass(frozen=True)
class Piece:
    """A piece of a process's output, with its own terminator if it has one.

    Attributes:
        host: The host that printed it.
        process: ``rank 3``, ``ps`` …; None for the toolkit's own words.
        data: The bytes, unchanged, with the terminator.
    """

    host: str
    process: str | None
    data: bytes

    @property
    def rank(self) -> int | None:
        """The rank, when the process is one."""
        return rank_of(self.process)


def rank_of(process: str | None) -> int | None:
    """Return ``3`` for ``rank 3``, None for anything else."""
    if process is not None and process.startswith("rank ") and process[5:].isdecimal():
        return int(process[5:])
    return None


def prefix(host: str, process: str | None) -> str:
    """Return the tag in front of a line, without the space: ``[algo-1:rank 0]``."""
    return f"[{host}:{process}]" if process is not None else f"[{host}]"


def split_pieces(buffer: bytearray, *, final: bool = False, limit: int = PIECE_LIMIT) -> list[bytes]:
    """Take the whole pieces off the front of ``buffer``.

    Args:
        buffer: What has been read of one process and not been printed; what is left stays in it.
        final: Whether nothing will follow, so that an unterminated rest is a piece too.
        limit: Pieces longer than this many bytes are cut.

    Returns:
        The pieces, each with its terminator, but for cut ones and the rest at the end.
    """
    pieces: list[bytes] = []
    start = 0
    size = len(buffer)
    # One long line comes in many reads: looking for a byte is a hundred times faster than the pattern.
    terminated = buffer.find(b"\n") >= 0 or buffer.find(b"\r") >= 0
    for match in _TERMINATOR.finditer(buffer) if terminated else ():
        end = match.end()
        if match.group() == b"\r" and end == size and not final:
            break  # "\r\n" may have been cut in two: wait for the next byte
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
    """Return the printed line for a piece; ``tag`` is the encoded :func:`prefix`."""
    if piece.endswith((b"\n", b"\r")):
        return tag + b" " + piece
    return tag + b"+" + piece + b"\n"


def decode_line(line: bytes) -> Piece | Event | bytes:
    """Read back one printed line.

    Args:
        line: The line with its terminator, as :func:`split_pieces` gives it.

    Returns:
        A piece of output, an event, or the line itself when it is neither (another program's words: an image without
        our toolkit prints such lines).
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
