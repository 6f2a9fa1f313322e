"""Let the process end while TensorFlow's threads call Python readers.

When Python ends, TensorFlow waits for whatever its iterators still have under way. Two things would make it wait for
ever. A read of a FIFO whose writer stands still: so readers wait for bytes or for the end of the process. And a thread
that wants to enter Python, or return into it, in the moment in which Python ends: it is ended there and then, within
TensorFlow's function (``PyEval_RestoreThread`` in Python's documentation). So the end waits for these threads.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import functools
import os
import select
import sys
import threading
import time
from collections.abc import Iterator

#: How long the end of the process waits for TensorFlow's threads, in seconds, should one not come back.
_GRACE = 10.0
#: An open reader that was not asked for so long, and for twice as long as it ever was not, is hardly about to be:
#: TensorFlow has read enough ahead. At least and at most, in seconds.
_QUIET, _LONGEST_QUIET = 0.1, 0.5
_PAUSE = 0.001

_lock = threading.Lock()
#: Readers that TensorFlow will still close.
_open = 0
#: Those of them that have told it that there is no more.
_finishing = 0
#: When one was last asked for something, and the longest time between two such moments.
_asked = 0.0
_gap = 0.0


@functools.cache
def descriptor() -> int:
    """Return a descriptor that becomes readable once the process ends; nobody may read from it."""
    end, signal = os.pipe()
    atexit.register(_leave, signal, os.getpid())
    return end


def wait(file: int, timeout: float | None = None) -> bool:
    """Wait for bytes, or for the end of what is written.

    Args:
        file: The FIFO, open for reading.
        timeout: In seconds; None to wait for as long as it takes.

    Returns:
        Whether there are some. Not after the timeout, nor when the process ends: see :func:`ending`.
    """
    poll = select.poll()
    poll.register(file, select.POLLIN)  # and POLLHUP, once a writer was there and is gone
    poll.register(descriptor(), select.POLLIN)
    ready = dict(poll.poll(None if timeout is None else max(0.0, timeout) * 1000))
    return descriptor() not in ready and file in ready


def ending(timeout: float = 0.0) -> bool:
    """Return whether the process ends, or begins to end within ``timeout`` seconds."""
    return bool(select.select([descriptor()], [], [], timeout)[0])


def opened() -> None:
    """Take note that TensorFlow has opened a Python reader, and will close it."""
    global _open
    with _lock:
        _open += 1


def finished() -> None:
    """Take note that a reader has told TensorFlow that there is no more."""
    global _finishing
    with _lock:
        _finishing += 1


def closed(*, finished: bool) -> None:
    """Take note that TensorFlow has closed a reader.

    Args:
        finished: Whether it had told that there is no more.
    """
    global _open, _finishing
    with _lock:
        _open -= 1
        _finishing -= finished


@contextlib.contextmanager
def asked() -> Iterator[None]:
    """Take note that a Python reader is being called."""
    global _asked, _gap
    if _asked:
        _gap = max(_gap, time.monotonic() - _asked)
    try:
        yield
    finally:
        _asked = time.monotonic()


def _leave(signal: int, process: int) -> None:
    if os.getpid() != process:  # a forked child must not end its parent's readers
        return
    os.write(signal, b"\0")
    until = time.monotonic() + _GRACE
    while _is_awaited() and time.monotonic() < until:
        time.sleep(_PAUSE)


def _is_awaited() -> bool:
    """Return whether a thread of TensorFlow's is in Python, is about to enter it, or certainly will."""
    with _lock:
        certain, possible = _finishing, _open
    quiet = min(max(_QUIET, 2 * _gap), _LONGEST_QUIET)
    return bool(certain or (possible and time.monotonic() - _asked < quiet) or _visitors() > 0)


def _visitors() -> int:
    """Count the threads in Python, or waiting for its lock, that Python did not start."""
    # Of all that tells of the threads this alone counts those that wait for the lock.
    return len(sys._current_exceptions()) - _thread._count() - 1  # the main thread is not in that count
