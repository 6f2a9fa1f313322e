"""The host's importer, as a rank wrapper asks it for a process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket

from container.system.connection import BlockingConnection

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


class Forked:
    """A process that the importer has forked for this wrapper.

    Attributes:
        pid: Its pid.
        importer_gone: Whether it has ended with the importer.
    """

    def __init__(self, connection: BlockingConnection, pid: int) -> None:
        self._connection = connection
        self.pid = pid
        self.importer_gone = False

    def wait(self) -> tuple[int, int]:
        """Return how it has ended, as a wait status, and its peak memory in KiB."""
        answer = None
        with contextlib.suppress(OSError):
            answer = self._connection.receive()
        self.importer_gone = answer is None  # it was killed, and its death killed the rank
        return (int(answer["status"]), int(answer["max_rss_kb"])) if answer else (signal.SIGKILL, 0)


def fork(
    command: Sequence[str],
    env: Mapping[str, str],
    descriptors: Sequence[int],
    *,
    path: str,
    readable: Callable[[BlockingConnection], bool],
) -> Forked | None:
    """Have this host's importer fork the rank, once it has imported.

    Args:
        command: The rank's command.
        env: Its environment.
        descriptors: For its output, for its events, and perhaps for its place.
        path: The importer's socket.
        readable: Waits until there is something to read on the connection; false to wait no longer.

    Returns:
        The process; None where there is none, or nobody waits for it: this rank is to be started as it would be
        without an importer.
    """
    sock = socket.socket(socket.AF_UNIX)
    connection = BlockingConnection(sock)
    answer = None
    with contextlib.suppress(OSError):
        sock.connect(path)
        ask(sock, {"argv": list(command), "environment": dict(env), "pid": os.getpid()}, descriptors)
        while (answer := connection.take()) is None and readable(connection) and connection.read():
            pass
    if answer is None or answer["op"] != "forked":
        connection.close()
        return None
    return Forked(connection, int(answer["pid"]))


def ask(sock: socket.socket, request: Mapping[str, object], descriptors: Sequence[int]) -> None:
    """Send a fork server a request, with descriptors beside it."""
    fd = os.memfd_create("request")
    os.write(fd, json.dumps(request).encode())
    os.lseek(fd, 0, os.SEEK_SET)
    socket.send_fds(sock, [b"{}\n"], [fd, *descriptors])
    os.close(fd)
