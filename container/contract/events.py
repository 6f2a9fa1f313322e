"""Report events (metrics, checkpoints, phases) to the toolkit from within a training process.

A rank has a pipe to its host's toolkit, which the rank's child processes also use. The toolkit adds the host, rank,
attempt and generation to an event, and sends the event to the job's record. A process without such a pipe writes
nothing. There is no pipe if the script runs under another toolkit on SageMaker, or without a toolkit.

Reporting does not disturb the training. No error is raised. If the toolkit stops reading, the first event waits for at
most ``WAIT_S`` seconds. Later events are dropped at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import stat
import threading
import time
from typing import Any

from container.contract import variables

#: Maximum size of a line in bytes. A longer line is replaced by a short line that contains the size of the long line.
LINE_LIMIT = 60_000

#: How long an event waits for the toolkit to read, in seconds. After this time, the event is dropped. Later events are
#: dropped without a wait, until the toolkit reads again.
WAIT_S = 2.0

#: Time between two reports of progress within an epoch, in seconds. The reports show that a long epoch without output
#: is not a hang.
SIGN_OF_LIFE_S = 5.0

#: This process's rank. None if the toolkit knows the rank. An elastic worker sets the rank, because its rank changes.
rank: int | None = None

_lock = threading.Lock()
_patient = True  # whether the toolkit accepted the last line
_torn = False  # whether the last line was cut; if it was, the next line begins with a line break
_lost = 0  # the number of events that were lost since the last event that was written


def emit(kind: str, **data: Any) -> bool:
    """Write one event.

    Args:
        kind: The kind of event, such as ``metric``, ``checkpoint`` or ``phase``.
        data: The data of the event. A numpy scalar is written as a number. Any other value without a JSON form, such as
            a path, is written as its text.

    Returns:
        Whether the event was written completely.
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
                return _write_or_count(fd, line)
            finally:
                os.close(fd)
    except (OSError, ValueError, TypeError, RecursionError):
        return False  # the toolkit has ended, or the event cannot be written; the script must not fail because of this


def _write_or_count(fd: int, line: bytes) -> bool:
    """Write a line, and before it a warning if earlier lines were lost. Return whether the line was written."""
    global _lost
    if _lost:
        message = f"{_lost} reports of the script, such as metrics, were lost: fleetfit did not read them in time."
        line = _line("warning", {"message": message}) + line
    written = _write(fd, line)
    _lost = 0 if written else _lost + 1
    return written


def _line(kind: str, data: dict[str, Any]) -> bytes:
    known = {"rank": rank} if rank is not None else {}
    line = _encode({"kind": kind, "time_ns": time.time_ns(), "data": data, **known})
    if len(line) > LINE_LIMIT:
        line = _encode({"kind": kind, "time_ns": time.time_ns(), "data": {"dropped_bytes": len(line)}})
    return line


def _encode(event: dict[str, Any]) -> bytes:
    return json.dumps(event, separators=(",", ":"), default=_plain).encode() + b"\n"


def _plain(value: Any) -> Any:
    """Convert a value without a JSON form to a value that JSON can represent."""
    item = getattr(value, "item", None)
    if callable(item) and getattr(value, "size", 1) == 1:
        plain = item()
        if isinstance(plain, (bool, int, float, str)):
            return plain
    return str(value)


def _open(target: str) -> int | None:
    """Open the rank's pipe again in non-blocking mode. The mode of the inherited descriptor is not changed, because
    other code also uses it.

    A process that was started with ``subprocess`` has not inherited the descriptor. In this case, the pipe is opened
    through the parent process, or the parent's parent, and so on.

    Args:
        target: The descriptor and the inode of the pipe, as ``fd:inode``.

    Returns:
        The new descriptor. None if no process has the pipe open under the descriptor's number.
    """
    number, _, inode = target.partition(":")
    process = b"self"
    while process not in (b"0", b"1"):
        with contextlib.suppress(FileNotFoundError, PermissionError):
            path = b"/proc/%b/fd/%d" % (process, int(number))
            status = os.stat(path)
            if stat.S_ISFIFO(status.st_mode) and status.st_ino == int(inode):
                return os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(b"/proc/%b/stat" % process, "rb") as file:
            process = file.read().rpartition(b")")[2].split()[1]
    return None


def _write(fd: int, line: bytes) -> bool:
    """Write the whole line, and return whether the line was written completely.

    The kernel does not mix the bytes of lines from several processes if a line has at most PIPE_BUF bytes.
    """
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
