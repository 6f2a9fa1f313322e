"""Request a process for a rank from the host's importer, on behalf of the rank wrapper."""

from __future__ import annotations

import contextlib
import os
import signal
import socket

from container.contract import messages, variables
from container.system.connection import BlockingConnection

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


class Forked:
    """A process that the importer has forked for this wrapper.

    Attributes:
        pid: The pid of the process.
        importer_gone: Whether the process has ended because the importer has ended.
    """

    def __init__(self, connection: BlockingConnection, pid: int) -> None:
        self._connection = connection
        self.pid = pid
        self.importer_gone = False

    def wait(self) -> tuple[int, int]:
        """Wait for the end of the process. Return the process's wait status, and its peak memory in KiB."""
        answer = None
        with contextlib.suppress(OSError):
            answer = self._connection.receive()
        self.importer_gone = answer is None  # the importer was killed, which also killed the rank
        return (int(answer["status"]), int(answer["max_rss_kb"])) if answer else (signal.SIGKILL, 0)


def fork(
    path: str, request: Mapping[str, object], descriptors: Sequence[int], readable: Callable[[BlockingConnection], bool]
) -> Forked | None:
    """Request a process for the rank from this host's importer. The importer forks the process when the imports are
    finished.

    Args:
        path: The path of the importer's socket.
        request: The rank's command (``argv``), its ``environment``, and the ``pid`` of this wrapper.
        descriptors: The descriptors for the rank's output, for its events, and optionally for its remaining variables.
        readable: A function that waits until a connection can be read. The function returns False to stop waiting.

    Returns:
        The process. None if the importer has refused the request or has ended, or the wait was stopped. The rank must
        then be started without an importer.
    """
    sock = socket.socket(socket.AF_UNIX)
    connection = BlockingConnection(sock)
    with contextlib.suppress(OSError):
        sock.connect(path)
        ask(sock, request, descriptors)
        while readable(connection) and connection.read():
            if answer := connection.take():
                return Forked(connection, int(answer["pid"]))
    connection.close()
    return None


def ask(sock: socket.socket, request: Mapping[str, object], descriptors: Sequence[int]) -> None:
    """Send a request to a fork server, together with descriptors."""
    fd = os.memfd_create("request")
    os.write(fd, messages.encode(request, variables.VARIABLES_LIMIT))
    os.lseek(fd, 0, os.SEEK_SET)
    socket.send_fds(sock, [b"{}\n"], [fd, *descriptors])
    os.close(fd)
