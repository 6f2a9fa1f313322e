"""How the reaper of kept containers has them for the next job: a socket in their folder. It imports next to nothing."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from container.system import locks

#: Held by the reaper.
LOCK = "lock"
#: Is there while the containers are for whoever comes.
_FREE = "free"
_SOCKET = "reaper"
#: What a reaper may take to give them, in seconds.
_PATIENCE_S = 5.0
_LOOK_S = 0.005


def is_used(folder: Path) -> bool:
    """Return whether containers have a reaper: a job runs in them, or may still come."""
    return locks.is_held(folder / LOCK)


def offer(folder: Path) -> None:
    """Let the containers be for whoever comes, from now on: the reaper is about to listen.

    Raises:
        OSError: it cannot be noted.
    """
    (folder / _FREE).touch()


def claim(folder: Path) -> socket.socket | None:
    """Return the connection to the reaper that gives its containers; None where it does not."""
    until = time.monotonic() + _PATIENCE_S
    while (folder / _FREE).exists() and is_used(folder) and time.monotonic() < until:
        try:
            reaper = connect(folder, _SOCKET)
        except OSError:  # it is about to listen, or another job has come before this one
            time.sleep(_LOOK_S)
            continue
        reaper.settimeout(_PATIENCE_S)
        with contextlib.suppress(OSError):
            if reaper.recv(1):
                return reaper
        reaper.close()
    return None


def wait_for_job(folder: Path, seconds: float) -> socket.socket | None:
    """Wait in the reaper for the next job, and return its connection; None when the time is over."""
    with listen(folder, _SOCKET) as listener:
        listener.settimeout(seconds)
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            return None
        finally:
            for name in (_FREE, _SOCKET):
                (folder / name).unlink(missing_ok=True)
    try:
        connection.sendall(b".")
    except OSError:  # the job has ended in the meantime
        connection.close()
        return None
    return connection


def connect(folder: Path, name: str) -> socket.socket:
    """Connect to a socket in a folder.

    Raises:
        OSError: nobody listens there.
    """
    with _unix_socket(folder, name) as (connection, address):
        connection.connect(address)
        return connection


def listen(folder: Path, name: str) -> socket.socket:
    """Listen at a socket in a folder.

    Raises:
        OSError: that cannot be done.
    """
    with _unix_socket(folder, name) as (listener, address):
        listener.bind(address)
        listener.listen()
        return listener


@contextlib.contextmanager
def _unix_socket(folder: Path, name: str) -> Iterator[tuple[socket.socket, str]]:
    """Give a socket and its address by the folder's descriptor: a path may have 107 bytes, a user's home more."""
    place = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        yield connection, f"/proc/self/fd/{place}/{name}"
    except BaseException:
        connection.close()
        raise
    finally:
        os.close(place)
