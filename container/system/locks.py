"""Take and test locks on files. The kernel releases a lock when the last process that has its descriptor open ends,
even if the process is killed.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

#: How long :func:`take_from_askers` waits for processes that only test the lock, and the pause between its attempts to
#: take the lock, in seconds.
_ASKING_S = 5.0
_PAUSE_S = 0.002


def take(path: Path) -> int | None:
    """Try to acquire the exclusive lock of a file, without waiting. Create the file if it is missing.

    Returns:
        The descriptor that holds the lock. None if another process holds the lock.

    Raises:
        OSError: the file cannot be created or opened.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def take_from_askers(descriptor: int) -> bool:
    """Try to acquire the exclusive lock of an open file.

    Wait up to five seconds for processes that are just testing the lock with :func:`is_held`.

    Args:
        descriptor: The file's descriptor.

    Returns:
        Whether the lock was acquired. False if another process holds the lock.
    """
    until = time.monotonic() + _ASKING_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass
        else:
            return True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        # Processes that only test the lock share it for a moment.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        if time.monotonic() > until:
            return False
        time.sleep(_PAUSE_S)


def is_held(path: Path) -> bool:
    """Return whether a process holds the exclusive lock of a file. Return False if the file does not exist."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        # The lock is shared, so that two processes that test it at the same time do not mistake each other for its
        # holder.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
