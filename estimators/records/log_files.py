"""Convert names of processes, such as ``rank 3``, to names of log files in a job's record, and back."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote, unquote


def log_stem(process: str | None) -> str:
    """Return the name of a process's log file without the suffix, such as ``rank-3`` for ``rank 3``.

    :func:`process_of` does the reverse.

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
    """Return the name of the process whose log file is ``<stem>.log``, such as ``rank 3`` for ``rank-3``.

    Return None for ``toolkit``, the log of the program that starts the host's processes.
    """
    if stem == "toolkit":
        return None
    if stem == "%":
        return ""
    return unquote(stem.replace("-", " "), errors="surrogateescape")


def times_file(log_file: Path) -> Path:
    """Return the path of the file with the times of a log file's output.

    The file contains one 16-byte little-endian record for each piece of output: its time in nanoseconds since the
    epoch, and the offset of its end in the log file.
    """
    return log_file.with_suffix(".times")
