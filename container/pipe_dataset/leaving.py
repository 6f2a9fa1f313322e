"""Allow the process to exit while TensorFlow's threads call Python readers.

When Python exits, TensorFlow waits until all its iterators have finished their current work. Without this module,
TensorFlow could wait forever in two cases.

First, a reader may wait for a FIFO whose writer has stopped writing. Therefore readers wait either for bytes or for the
exit of the process.

Second, a thread may enter Python, or return to it, at the moment when Python exits. Python terminates such a thread
within TensorFlow's function (``PyEval_RestoreThread`` in Python's documentation), and TensorFlow waits for this
function forever. Therefore the exit waits until these threads have left Python.
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

#: How long the exit waits for TensorFlow's threads at most, in seconds.
_GRACE = 10.0
#: Minimum and maximum of the quiet time, in seconds. The quiet time is twice the longest time between two requests. If
#: the readers have got no request for the quiet time, TensorFlow has read ahead enough, and no further request is
#: expected.
_QUIET, _LONGEST_QUIET = 0.1, 0.5
_PAUSE = 0.001

_lock = threading.Lock()
#: Number of readers that TensorFlow has not closed yet.
_open = 0
#: Number of these readers that have reported their end to TensorFlow.
_finishing = 0
#: Time of the last request to a reader, and the longest time between two requests.
_asked = 0.0
_gap = 0.0


@functools.cache
def descriptor() -> int:
    """Return a descriptor that becomes readable when the process exits. Callers must not read from the descriptor."""
    end, signal = os.pipe()
    atexit.register(_leave, signal, os.getpid())
    return end


def wait(file: int, timeout: float | None = None) -> bool:
    """Wait until the FIFO contains bytes, its writer has closed it, or this process begins to exit.

    Args:
        file: The descriptor of the FIFO, open for reading.
        timeout: The time limit in seconds. If None, no limit.

    Returns:
        True if the FIFO can be read. False after the timeout, or when the process exits. :func:`ending` distinguishes
        between the timeout and the exit.
    """
    poll = select.poll()
    poll.register(file, select.POLLIN)  # also returns POLLHUP, after the last writer has closed the FIFO
    poll.register(descriptor(), select.POLLIN)
    ready = dict(poll.poll(None if timeout is None else max(0.0, timeout) * 1000))
    return descriptor() not in ready and file in ready


def ending(timeout: float = 0.0) -> bool:
    """Return whether the process is exiting, or begins to exit within ``timeout`` seconds."""
    return bool(select.select([descriptor()], [], [], timeout)[0])


def opened() -> None:
    """Record that TensorFlow has opened a Python reader. TensorFlow will close the reader."""
    global _open
    with _lock:
        _open += 1


def finished() -> None:
    """Record that a reader has reported the end of its stream to TensorFlow."""
    global _finishing
    with _lock:
        _finishing += 1


def closed(*, finished: bool) -> None:
    """Record that TensorFlow has closed a reader.

    Args:
        finished: Whether the reader had reported the end of its stream.
    """
    global _open, _finishing
    with _lock:
        _open -= 1
        _finishing -= finished


@contextlib.contextmanager
def asked() -> Iterator[None]:
    """Record the times of TensorFlow's calls of Python readers. Each call runs in a ``with`` block of this function."""
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
    """Return whether the exit must still wait for TensorFlow's threads: whether one of them is in Python, is about to
    enter Python, or will certainly enter Python later.
    """
    with _lock:
        certain, possible = _finishing, _open
    quiet = min(max(_QUIET, 2 * _gap), _LONGEST_QUIET)
    return bool(certain or (possible and time.monotonic() - _asked < quiet) or _visitors() > 0)


def _visitors() -> int:
    """Return the number of threads that Python did not start, and that are in Python or wait for the GIL."""
    # Of all functions that report threads, only this one counts those that wait for the GIL.
    return len(sys._current_exceptions()) - _thread._count() - 1  # _count() does not include the main thread
