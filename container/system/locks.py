"""Locks on files: the kernel releases one when the last process that holds its descriptor ends, for whatever reason."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

#: How long those who only ask whether a lock is held are waited for, in seconds, and how long between two looks.
_ASKING_S = 5.0
_PAUSE_S = 0.002


def take(path: Path) -> int | None:
    """Take a lock; returns the descriptor that holds it, or None when another process does.

    Raises:
        OSError: the file cannot be made or opened.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def take_from_askers(descriptor: int) -> bool:
    """Take the lock of an open file, though somebody may be asking by :func:`is_held` at this moment.

    Args:
        descriptor: The file's.

    Returns:
        Whether it was taken; False when another process holds it.
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
        # Those who only ask share it, for a moment.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        if time.monotonic() > until:
            return False
        time.sleep(_PAUSE_S)


def is_held(path: Path) -> bool:
    """Return whether a process holds a lock; False where there is no such file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        # Shared, so that two who ask at once do not take each other for the holder.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
