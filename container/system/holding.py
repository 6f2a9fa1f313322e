"""Block a process at a named point, so that a test can interrupt the process exactly there. Outside of tests, no point
blocks.

A test sets :data:`FOLDER` to a folder. For each point at which the test wants to block processes, the test creates a
listening unix socket in the folder. A process that reaches such a point connects to the socket, and waits until the
test closes the connection or ends. The kernel tells the test which process has connected, even if the process is in a
different PID namespace. Only the thread that has reached the point waits.
"""

from __future__ import annotations

import os

#: The folder of the sockets. Only tests set it.
FOLDER = "FLEETFIT_HOLD"


def hold(point: str) -> None:
    """Wait while a test blocks this point.

    Args:
        point: The point's name, such as ``rank.before_start``.
    """
    if (folder := os.environ.get(FOLDER)) is not None:
        _wait(os.path.join(folder, point))


def _wait(path: str) -> None:
    import contextlib
    import socket

    with socket.socket(socket.AF_UNIX) as connection, contextlib.suppress(OSError):  # no test blocks this point
        connection.connect(path)
        connection.recv(1)
