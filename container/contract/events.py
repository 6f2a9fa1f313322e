"""Report events (metrics, checkpoints, phases) to the toolkit from within a training process.

A rank inherits a pipe to its host's toolkit, which adds the host, rank, attempt and generation, and passes the event
on to the job's record. Without such a pipe (on SageMaker under another toolkit, or alone) nothing is written.

Telling never disturbs the training: nothing is raised, and a toolkit that takes nothing is waited for once, shortly.
"""

from __future__ import annotations

import json
import os
import select
import stat
import threading
import time
from typing import Any

from container.contract import variables

#: A longer line, in bytes, is replaced by one that says how long it was.
LINE_LIMIT = 60_000

#: How long the toolkit may take nothing before the event is dropped, in seconds. Later ones are then not waited for
#: until it takes something again.
WAIT_S = 2.0

#: This process's rank, where the toolkit cannot know it: elastic ranks change.
rank: int | None = None

_lock = threading.Lock()
_patient = True  # whether the toolkit took the last line
_torn = False  # whether the last line was cut: the next one begins on a fresh line


def emit(kind: str, **data: Any) -> bool:
    """Write one event.

    Args:
        kind: What happened: ``metric``, ``checkpoint``, ``phase`` …
        data: More about it. What JSON has no form for (a numpy scalar, a path) is written as its value or text.

    Returns:
        Whether the toolkit has it.
    """
    target = os.environ.get(variables.EVENTS)
    if not target:
        return False
    try:
        line = _line(kind, data)
        with _lock:
            fd = _open(target)
            if fd is None:
                return False
            try:
                return _write(fd, line)
            finally:
                os.close(fd)
    except (OSError, ValueError, TypeError, RecursionError):
        return False  # the toolkit is gone, or there is no saying it: neither is the script's concern


def _line(kind: str, data: dict[str, Any]) -> bytes:
    known = {"rank": rank} if rank is not None else {}
    line = _encode({"kind": kind, "time_ns": time.time_ns(), "data": data, **known})
    if len(line) > LINE_LIMIT:
        line = _encode({"kind": kind, "time_ns": time.time_ns(), "data": {"dropped_bytes": len(line)}})
    return line


def _encode(event: dict[str, Any]) -> bytes:
    return json.dumps(event, separators=(",", ":"), default=_plain).encode() + b"\n"


def _plain(value: Any) -> Any:
    """Convert a value that JSON does not know to one that it does."""
    item = getattr(value, "item", None)
    if callable(item) and getattr(value, "size", 1) == 1:
        plain = item()
        if isinstance(plain, (bool, int, float, str)):
            return plain
    return str(value)


def _open(target: str) -> int | None:
    """Open the pipe anew, so that its being non-blocking is nobody else's affair.

    Args:
        target: ``fd:inode`` of the inherited pipe.

    Returns:
        A descriptor, or None when the number is something else's by now.
    """
    number, _, inode = target.partition(":")
    fd = os.open(f"/proc/self/fd/{int(number)}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    status = os.fstat(fd)
    if stat.S_ISFIFO(status.st_mode) and status.st_ino == int(inode):
        return fd
    os.close(fd)
    return None


def _write(fd: int, line: bytes) -> bool:
    """Write the whole line. Up to PIPE_BUF bytes the kernel keeps it in one piece beside other processes' lines."""
    global _patient, _torn
    if _torn:
        line = b"\n" + line
    deadline = time.monotonic() + (WAIT_S if _patient else 0.0)
    started = False
    while line:
        try:
            line = line[os.write(fd, line) :]
            started = True
        except BlockingIOError:
            poll = select.poll()
            poll.register(fd, select.POLLOUT)
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                _patient = False
                _torn = _torn or started
                return False
    _patient = True
    _torn = False
    return True
