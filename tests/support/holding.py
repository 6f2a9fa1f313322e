"""Holding a process of a job at a named point, where a test interrupts it: ``container.system.holding``."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import clusters

from container.system.holding import FOLDER

_CREDENTIALS = struct.Struct("3i")


class Held:
    """A point that is held.

    Args:
        point: Its name.
        folder: Where those that come to it look.
    """

    def __init__(self, point: str, folder: str) -> None:
        self._point = point
        self._path = os.path.join(folder, point)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self._path)
        self._listener.listen()
        self._listener.setblocking(False)
        self._standing: dict[int, socket.socket] = {}
        self._passed: list[str] = []

    def await_there(self, wanted: Callable[[clusters.Process], bool] = lambda process: True) -> int:
        """Wait until a process stands at the point, and return its pid.

        Args:
            wanted: Which one; others are let go.
        """
        return clusters.until(lambda: self._next(wanted), say=self._seen)

    def _next(self, wanted: Callable[[clusters.Process], bool]) -> int:
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return 0
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid: int = _CREDENTIALS.unpack(credentials)[0]
        process = clusters.process(pid)
        if process is None or not wanted(process):
            self._passed.append(f"{pid}: {'gone' if process is None else process.argv}")
            connection.close()
            return 0
        self._standing[pid] = connection
        return pid

    def _seen(self) -> str:
        folder = os.path.dirname(self._path)
        found = (clusters.process(int(name)) for name in os.listdir("/proc") if name.isdigit())
        others = [f"{one.pid}: {one.argv}" for one in found if one is not None and one.environ.get(FOLDER) == folder]
        return (
            f"at {self._point} stand {list(self._standing)}, let go were {self._passed}; "
            f"processes that would be held: {others or 'none'}"
        )

    def let_go(self, pid: int | None = None) -> None:
        """Let one process go, or all that stand here, and hold none any more."""
        if pid is not None:
            self._standing.pop(pid).close()
            return
        Path(self._path).unlink(missing_ok=True)
        self._listener.close()
        for connection in self._standing.values():
            connection.close()
        self._standing.clear()


@contextlib.contextmanager
def held(point: str) -> Iterator[Held]:
    """Hold a point in what this process starts from now on."""
    folder = os.environ.get(FOLDER)
    own = folder is None
    if folder is None:
        folder = os.environ[FOLDER] = tempfile.mkdtemp(prefix="hold-")
    one = Held(point, folder)
    try:
        yield one
    finally:
        one.let_go()
        if own:
            del os.environ[FOLDER]
            shutil.rmtree(folder)
