"""The names of log files in a job's record."""

from __future__ import annotations

import re
from pathlib import Path

_PLAIN = re.compile(rb"[A-Za-z0-9._]")


def log_stem(process: str | None) -> str:
    """Return a process's name as part of a file name: ``rank-3`` for ``rank 3``; :func:`process_of` reads it back.

    A space becomes a dash; what else is not a letter, digit, dot or underscore becomes ``%XX``.
    """
    if process is None:
        return "toolkit"
    stem = "".join(
        "-" if byte == 0x20 else chr(byte) if _PLAIN.match(bytes([byte])) else f"%{byte:02X}"
        for byte in process.encode("utf-8", "surrogateescape")
    )
    if stem == "toolkit" or not stem or stem.startswith("."):
        return f"%{ord(stem[0]):02X}{stem[1:]}" if stem else "%"
    return stem


def process_of(stem: str) -> str | None:
    """Return the process whose file name has this stem; None for the toolkit itself."""
    if stem == "toolkit":
        return None
    if stem == "%":
        return ""
    spaced = stem.replace("-", " ").encode()
    plain = re.sub(rb"%([0-9A-F]{2})", lambda match: bytes([int(match.group(1), 16)]), spaced)
    return plain.decode("utf-8", "surrogateescape")


def times_file(log_file: Path) -> Path:
    """Return the file of times beside a log: 16-byte little-endian records (time in ns since the epoch, end offset)."""
    return log_file.with_suffix(".times")
