"""Locks between provisioning processes."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from estimators.provision.progress import SILENT, Progress


@contextmanager
def exclusive(path: Path, progress: Progress = SILENT, waiting: str = "") -> Iterator[int]:
    """Holds an exclusive lock on a file while the block runs.

    The lock belongs to the open file, so a child that gets the descriptor keeps it held: after a SIGKILL of this
    process the next one waits until a pip that was left behind has ended, and never writes beside it.

    Args:
        path: The lock's file; made if need be, and left behind.
        progress: Gets ``waiting`` as a note if another process holds the lock.

    Yields:
        The descriptor to hand to children.
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
