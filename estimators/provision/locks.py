"""Provide locks between processes that provision environments."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from estimators.provision.progress import SILENT, ProgressDisplay


@contextmanager
def exclusive(path: Path, progress: ProgressDisplay = SILENT, waiting: str = "") -> Iterator[int]:
    """Hold an exclusive lock on a file while the block runs.

    Child processes that inherit the descriptor hold the lock, too. If this process is killed, its child, such as pip,
    may continue to write. The next process then waits until the child has exited, so that two processes never write at
    the same time.

    Args:
        path: The path of the lock file, which is created if necessary and never removed.
        progress: The display to which ``waiting`` is written if another process holds the lock.
        waiting: The text that tells the user what this process waits for.

    Yields:
        The lock file's descriptor, which child processes can inherit.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.note(waiting)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)
