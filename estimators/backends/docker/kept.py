"""Starting a job's toolkit in a container that is kept: by its first process, which has it loaded.

The other side, and what is said, is :mod:`container.toolkit.idle`.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from container.contract import variables
from container.contract.messages import MessageError
from container.system.connection import BlockingConnection
from estimators.backends.docker import keeping
from estimators.backends.docker.engine_errors import EngineError

#: The socket's name in its folder.
_NAME = "toolkit"
#: Seconds that a container that has just been started may take until its first process listens.
_START = 60.0
#: How often it is asked meanwhile whether the container still runs, in seconds.
_LOOK = 1.0


def socket_in(folder: str) -> str:
    """Return where the first process listens, in the container."""
    return f"{folder}/{_NAME}"


def listens(folder: Path) -> bool:
    """Return whether the first process of a container listens: the container runs."""
    try:
        keeping.connect(folder, _NAME).close()
    except OSError:
        return False
    return True


def start(
    folder: Path, environment: Mapping[str, str], is_running: Callable[[], bool]
) -> tuple[socket.socket, BlockingConnection]:
    """Start the toolkit.

    Args:
        folder: The folder with the socket, on this machine.
        environment: The job's variables.
        is_running: Whether the container runs.

    Returns:
        The connection on which it prints and reads, and the one on which its end is told.

    Raises:
        EngineError: nobody listens there.
    """
    control = BlockingConnection(_await(folder, is_running), limit=variables.VARIABLES_LIMIT)
    ours, theirs = socket.socketpair()
    try:
        with theirs:
            control.send({"op": "run", "environment": dict(environment)}, descriptors=[theirs.fileno()])
    except (OSError, MessageError) as error:
        ours.close()
        control.close()
        raise EngineError(f"the kept container does not accept the job: {error}.") from error
    return ours, control


def exit_code(control: BlockingConnection) -> int | None:
    """Wait for the toolkit's exit code; None when the container ended with it."""
    with control, contextlib.suppress(OSError, MessageError):
        if (message := control.receive()) is not None:
            return int(message["exit_code"])
    return None


def _await(folder: Path, is_running: Callable[[], bool]) -> socket.socket:
    until = time.monotonic() + _START
    look = time.monotonic() + _LOOK
    while True:
        try:
            return keeping.connect(folder, _NAME)
        except OSError as error:
            now = time.monotonic()
            if now > until:
                raise EngineError(f"the kept container did not start within {_START:g} s: {error}.") from error
            if now > look:
                look = now + _LOOK
                if not is_running():
                    raise EngineError("the kept container ended before a job ran in it.") from error
        time.sleep(0.005)
