"""Request a process for a rank from the host's importer, on behalf of the rank wrapper."""

from __future__ import annotations

import contextlib
import os
import signal
import socket

from container.system.connection import BlockingConnection, ask

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
    command: Sequence[str],
    env: Mapping[str, str],
    descriptors: Sequence[int],
    *,
    path: str,
    readable: Callable[[BlockingConnection], bool],
) -> Forked | None:
    """Request a process for the rank from this host's importer. The importer forks the process when the imports are
    finished.

    Args:
        command: The rank's command.
        env: The rank's environment.
        descriptors: The descriptors for the rank's output, for its events, and optionally for its remaining variables.
        path: The path of the importer's socket.
        readable: A function that waits until a connection can be read. The function returns False to stop waiting.

    Returns:
        The process. None if there is no importer, or the wait was stopped. The rank must then be started without an
        importer.
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
