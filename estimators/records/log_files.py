"""Convert names of processes to names of log files in a job's record, and back."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote, unquote


def log_stem(process: str | None) -> str:
    """Return a process's name as part of a file name, such as ``rank-3`` for ``rank 3``. See also :func:`process_of`.

    A space is replaced by a dash. Every other byte that is not a letter, digit, dot or underscore is replaced by
    ``%XX``.
    """
    if process is None:
        return "toolkit"
    stem = quote(process, safe=" ", errors="surrogateescape")
    stem = stem.replace("-", "%2D").replace("~", "%7E").replace(" ", "-")
    if stem == "toolkit" or not stem or stem.startswith("."):
        return f"%{ord(stem[0]):02X}{stem[1:]}" if stem else "%"
    return stem


def process_of(stem: str) -> str | None:
    """Return the process whose file name has a stem. Return None for the toolkit itself."""
    if stem == "toolkit":
        return None
    if stem == "%":
        return ""
    return unquote(stem.replace("-", " "), errors="surrogateescape")


def times_file(log_file: Path) -> Path:
    """Return the times file of a log.

    The file consists of 16-byte little-endian records. Each record has a time in nanoseconds since the epoch, and an
    offset at the end of a piece of output.
    """
    return log_file.with_suffix(".times")
