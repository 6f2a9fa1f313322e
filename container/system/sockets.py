"""Use unix sockets in folders whose paths are too long for the address of a unix socket."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from container.system.connection import BACKLOG


@contextlib.contextmanager
def short_path(path: Path) -> Iterator[str]:
    """Yield another, short path of a unix socket. It is valid in the ``with`` block, and fits into the 108 bytes of a
    socket's address, however long the folder's path is.

    Raises:
        OSError: the folder does not exist.
    """
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def connect(path: Path) -> socket.socket:
    """Connect to a unix socket.

    Raises:
        OSError: no process listens at the path.
    """
    connection = socket.socket(socket.AF_UNIX)
    try:
        with short_path(path) as short:
            connection.connect(short)
    except OSError:
        connection.close()
        raise
    return connection


def listen(path: Path) -> socket.socket:
    """Listen at a new unix socket.

    Raises:
        OSError: the socket cannot be created.
    """
    listener = socket.socket(socket.AF_UNIX)
    try:
        with short_path(path) as short:
            listener.bind(short)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
