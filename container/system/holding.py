"""Named points at which a test holds a process, to interrupt it just there. Outside of tests nothing is held.

A test sets :data:`FOLDER` to a folder, and listens there on a unix socket for each point that it wants to hold. Who
comes to such a point connects, and waits until the test closes the connection, which its death does too. The kernel
tells the test who has connected, also across namespaces. Only the thread that came waits.
"""

from __future__ import annotations

import os

#: The folder of the sockets. Only tests set it.
FOLDER = "FLEETFIT_HOLD"


def hold(point: str) -> None:
    """Wait here while a test holds this point: ``room.moment``."""
    if (folder := os.environ.get(FOLDER)) is not None:
        _wait(os.path.join(folder, point))


def _wait(path: str) -> None:
    import contextlib
    import socket

    with socket.socket(socket.AF_UNIX) as connection, contextlib.suppress(OSError):  # nobody holds this one
        connection.connect(path)
        connection.recv(1)
