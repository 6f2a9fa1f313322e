"""The host's importer, as a rank wrapper asks it for a process."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket

from container.system.connection import BlockingConnection

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

#: The longest request: a rank's command and environment.
_REQUEST_LIMIT = 64 << 20


class Forked:
    """A process that the importer has forked for this wrapper.

    Attributes:
        pid: Its pid, which stays its own until :meth:`wait` returns.
        importer_gone: Whether it has ended with the importer.
    """

    def __init__(self, connection: BlockingConnection, pid: int) -> None:
        self._connection = connection
        self.pid = pid
        self.importer_gone = False

    def wait(self) -> tuple[int, int]:
        """Return how it has ended, as a wait status, and its peak memory in KiB."""
        try:
            self._connection.send({"op": "reap"})
            answer = self._connection.receive()
        except OSError:
            answer = None
        if answer is None:  # the importer was killed, and its death killed the rank
            self.importer_gone = True
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
    """Return what the process takes over from us."""
    mask = os.umask(0)
    os.umask(mask)
    with open("/proc/self/oom_score_adj", encoding="ascii") as file:
        score = file.read().strip()
    return {
        "argv": list(command),
        "environment": dict(env),
        "umask": mask,
        "oom_score_adj": score,
        "limits": [[number, *resource.getrlimit(number)] for number in _LIMITS],
        "traits": traits(),
    }


_LIMITS = sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")})


def traits() -> dict[str, Any]:
    """Return what a process has from its parent that one of the importer's cannot take over."""
    with open("/proc/self/cgroup", encoding="utf-8") as file:
        groups = file.read()
    return {
        "cwd": os.getcwd(),
        "cores": sorted(os.sched_getaffinity(0)),
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "users": [*os.getresuid(), *os.getresgid()],
        "groups": groups,
        "namespaces": [os.readlink(f"/proc/self/ns/{kind}") for kind in ("ipc", "mnt", "net", "pid", "user", "uts")],
    }
