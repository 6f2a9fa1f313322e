"""A supervisor's side of its :mod:`.reaper`, the process that removes a job's containers after the supervisor."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from container.system import processes, sockets
from container.system.loop import Loop

#: The program.
PROGRAM = Path(__file__).with_name("reaper.py")
#: The name of the socket in the reaper's folder.
_SOCKET = "reaper"
#: Seconds that a reaper may take to answer, if its last supervisor is about to end.
_ANSWER_S = 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Duty:
    """What a reaper does when its supervisor is over.

    Attributes:
        label: Everything with this label and ``value`` is removed from the engine.
        value: A record's folder, or a pool's.
        remove: Folders that are removed too.
        remove_last: Folders that are removed unless the containers are kept.
        image: The image whose tools give files back.
        trees: Folders of the job alone: what containers wrote there becomes the calling user's.
        shared: Folders that others use too: only what is root's or the image's user's.
    """

    label: str
    value: str
    remove: Sequence[str] = ()
    remove_last: Sequence[str] = ()
    image: str = ""
    trees: Sequence[str] = ()
    shared: Sequence[str] = ()


class Reaper:
    """The reaper of one job, which outlives the supervisor. Another one replaces a reaper that is killed.

    Args:
        loop: The supervisor's loop.
        protected: The supervisor's children that are left alone at its end.
        log: Where it says what goes wrong.
    """

    def __init__(self, loop: Loop, protected: set[int], log: Path) -> None:
        self._loop = loop
        self._protected = protected
        self._log = log
        self._connection: socket.socket | None = None

    def __bool__(self) -> bool:
        return self._connection is not None

    def start(self, folder: Path, duty: Duty) -> None:
        """Start a new one, which listens in a folder.

        Raises:
            OSError: it cannot be started.
        """
        (folder / _SOCKET).unlink(missing_ok=True)  # that of a reaper that was killed
        with sockets.listen(folder / _SOCKET) as listener, self._log.open("ab") as log:
            pid = processes.spawn(
                [sys.executable, str(PROGRAM), duty.value],
                env=dict(os.environ),
                cwd="/",
                stdin=listener.fileno(),
                stdout=log.fileno(),
                stderr=log.fileno(),
                death_signal=0,  # it is there to outlive us
                new_session=True,
            )
            self._protected.add(pid)
            self._loop.on_child(pid, lambda status: self._protected.discard(pid))
            self.take(sockets.connect(folder / _SOCKET), folder, duty)

    def take(self, connection: socket.socket, folder: Path, duty: Duty) -> None:
        """Have one that listens in a folder, by the connection that :func:`claim` has returned."""
        connection.sendall(json.dumps(dataclasses.asdict(duty)).encode() + b"\n")
        self._connection = connection
        self._loop.add_reader(connection.fileno(), lambda: self._hear(connection, folder, duty))

    def _hear(self, connection: socket.socket, folder: Path, duty: Duty) -> None:
        """Start another one when the connection ends: the reaper was killed, for lack of memory perhaps."""
        with contextlib.suppress(OSError):  # reset: it has not read the duty
            if connection.recv(1):
                return  # its answer to a new connection
        self.finish("")
        with contextlib.suppress(OSError):
            self.start(folder, duty)

    def finish(self, words: str) -> None:
        """Let it do its duty.

        Args:
            words: ``done``: nothing is being made on the engine any more. ``keep`` and seconds: the pool is for the
                next job. Nothing: none of that is known.
        """
        if self._connection is not None:
            self._loop.remove_reader(self._connection.fileno())
            with self._connection as connection, contextlib.suppress(OSError):
                connection.sendall(words.encode())
            self._connection = None


def claim(folder: Path) -> socket.socket | None:
    """Return the connection to the reaper of a folder, if it has no other supervisor."""
    connection = None
    try:
        connection = sockets.connect(folder / _SOCKET)
        connection.settimeout(_ANSWER_S)
        if connection.recv(1):
            return connection
    except OSError:
        pass
    if connection is not None:
        connection.close()
    return None


def dismiss(connection: socket.socket) -> None:
    """Have a reaper that :func:`claim` has returned remove everything now, by the duty that it has."""
    with connection, contextlib.suppress(OSError):
        connection.sendall(b"\n")


def is_alive(folder: Path) -> bool:
    """Return whether a folder has a reaper: a job runs in its containers, or may still come."""
    try:
        sockets.connect(folder / _SOCKET).close()
    except OSError:
        return False
    return True
