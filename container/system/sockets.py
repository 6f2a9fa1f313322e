"""Unix sockets in folders whose paths are longer than an address may be."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def short_path(path: Path) -> Iterator[str]:
    """Give a path of a socket that fits into its 108 bytes, however long the folder's path is.

    Raises:
        OSError: the folder is not there.
    """
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def connect(path: Path) -> socket.socket:
    """Connect to a socket.

    Raises:
        OSError: nobody listens there.
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
    """Listen at a new socket.

    Raises:
        OSError: that cannot be done.
    """
    listener = socket.socket(socket.AF_UNIX)
    try:
        with short_path(path) as short:
            listener.bind(short)
        listener.listen()
    except OSError:
        listener.close()
        raise
    return listener
