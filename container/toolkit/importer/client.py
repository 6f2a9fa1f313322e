"""The host's importer as its toolkit starts it, and as a rank wrapper asks it for a process.

The importer is ``hook/_fleetfit_importer.py``. It runs for as long as its toolkit, whose death ends it, and its own
death ends the ranks that were forked from it.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket

from container.contract import variables
from container.system import processes
from container.system.connection import BlockingConnection

#: What takes so long to import that it is worth a process.
SLOW = frozenset(("horovod", "jax", "keras", "tensorflow", "tf_keras", "torch"))

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path
    from typing import Any

#: The longest request: a rank's command and environment.
_REQUEST_LIMIT = 64 << 20
#: What the toolkit tells a wrapper, and not its command.
_WRAPPERS = frozenset(
    (
        variables.CODE_DIR,
        variables.PIPE_CHANNELS,
        variables.PLACE,
        variables.SHARED_MEMORY_DIR,
        variables.UMASK,
        variables.USERS_OPEN_FILES,
        variables.USERS_TMPDIR,
    )
)


def is_wanted(command: Sequence[str], environment: Mapping[str, str], python: str, packages: Collection[str]) -> bool:
    """Return whether ranks with this command may be forked from one that imports for them. Pure.

    The importer runs under the toolkit's own Python, started by the rank's own command: that this reaches the hook is
    known of no other.

    Args:
        command: The entry point's.
        environment: What all ranks of the host get.
        python: The toolkit's interpreter.
        packages: What they import.
    """
    asked = environment.get(variables.FORK)
    return (
        asked != "0"
        and (bool(packages) if asked == "1" else not SLOW.isdisjoint(packages))
        and command[0] == python
        and len(command) > 1
        and command[1].endswith(".py")
        and not command[1].startswith("-")
        and not any(name.startswith("PYTHON") and name not in _KNOWN for name in environment)
    )


#: Variables for Python that change nothing of what is relied on here.
_KNOWN = frozenset(
    (
        "PYTHONDONTWRITEBYTECODE",
        "PYTHONFAULTHANDLER",
        "PYTHONHASHSEED",
        "PYTHONIOENCODING",
        "PYTHONNOUSERSITE",
        "PYTHONPATH",
        "PYTHONPYCACHEPREFIX",
        "PYTHONUNBUFFERED",
        "PYTHONUTF8",
        "PYTHONWARNINGS",
    )
)


def start(
    command: Sequence[str], plan: Mapping[str, Any], environment: Mapping[str, str], path: Path, *, elastic: bool
) -> tuple[int, int]:
    """Start the host's importer.

    Args:
        command: The ranks' command.
        plan: What it is to import (:data:`variables.IMPORTER`).
        environment: What all ranks of the host get.
        path: Where its socket is to be.
        elastic: Whether ranks get a part of their environment later.

    Returns:
        Its pid, and the descriptor where it tells what happens, as messages without an operation.

    Raises:
        OSError: it could not be started.
    """
    env = {name: value for name, value in environment.items() if name not in _WRAPPERS}
    env = {name: value for name, value in env.items() if not name.startswith(variables.USERS_PREFIX)}
    listener = socket.socket(socket.AF_UNIX)
    described = os.memfd_create("plan")
    told, output = os.pipe()  # Python looks at its standard output when it starts, and a rank's is a pipe
    try:
        os.write(described, json.dumps(plan).encode())
        os.lseek(described, 0, os.SEEK_SET)
        listener.bind(str(path))
        listener.listen(256)
        env[variables.IMPORTER] = f"{listener.fileno()}:{described}"
        if elastic:
            env[variables.PLACE_FD] = "-1"
        pid = processes.spawn(
            command,
            env=env,
            cwd=environment[variables.CODE_DIR],
            stdout=output,
            stderr=output,
            pass_fds=(listener.fileno(), described),
            new_group=True,
        )
    except OSError:
        os.close(told)
        raise
    finally:
        listener.close()
        os.close(described)
        os.close(output)
    return pid, told


class Forked:
    """A process that the importer has forked for this wrapper.

    Attributes:
        pid: Its pid, which stays its own until :meth:`wait` returns.
    """

    def __init__(self, connection: BlockingConnection, pid: int) -> None:
        self._connection = connection
        self.pid = pid

    def wait(self) -> tuple[int, int]:
        """Return how it has ended, as a wait status, and its peak memory in KiB."""
        try:
            self._connection.send({"op": "reap"})
            answer = self._connection.receive()
        except OSError:
            answer = None
        if answer is None:  # the importer was killed, and its death killed the rank
            return signal.SIGKILL, 0
        return int(answer["status"]), int(answer["max_rss_kb"])


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
    connection = BlockingConnection(sock, limit=_REQUEST_LIMIT)
    answer = None
    with contextlib.suppress(OSError):
        sock.connect(path)
        connection.send({"op": "fork", **_request(command, env)}, descriptors)
        while (answer := connection.take()) is None and readable(connection) and connection.read():
            pass
    if answer is None or answer["op"] != "forked":
        connection.close()
        return None
    return Forked(connection, int(answer["pid"]))


def _request(command: Sequence[str], env: Mapping[str, str]) -> dict[str, Any]:
    """What the process takes over from us."""
    mask = os.umask(0)
    os.umask(mask)
    return {
        "argv": list(command),
        "environment": dict(env),
        "umask": mask,
        "limits": [[number, *resource.getrlimit(number)] for number in _LIMITS],
        "traits": traits(),
    }


_LIMITS = sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")})


def traits() -> dict[str, Any]:
    """Return what a process has from its parent that one of the importer's cannot take over."""
    return {
        "cwd": os.getcwd(),
        "session": os.getsid(0),
        "cores": sorted(os.sched_getaffinity(0)),
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "users": [*os.getresuid(), *os.getresgid()],
    }
