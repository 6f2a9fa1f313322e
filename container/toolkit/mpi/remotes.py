"""Start mpirun's daemons on other hosts.

On algo-1, mpirun calls its remote shell, which sends a request to algo-1's toolkit. That toolkit forwards the request
to the other host's toolkit, which starts the daemon.

:mod:`container.toolkit.mpi.daemons` and :mod:`container.toolkit.mpi.rsh` describe the remote shell and the daemon's
command line.
"""

from __future__ import annotations

import os
from pathlib import Path

from container.contract.environment import Machine
from container.contract.failures import Cause, Failure
from container.contract.plan import Role
from container.system.connection import Connection
from container.toolkit.mpi import daemons
from container.toolkit.process_group import ClusterProcess, Gang


class RemoteShells:
    """The remote shells on algo-1. Each waits until the daemon that it has requested ends.

    Attributes:
        waiting: The connections to the remote shells, by the number of the request.
    """

    def __init__(self) -> None:
        self.waiting: dict[int, Connection] = {}
        self._next = 0

    def add(self, connection: Connection) -> int:
        """Add a waiting remote shell, and return the number of its request."""
        number = self._next
        self._next += 1
        self.waiting[number] = connection
        connection.received = lambda message: None  # the remote shell sends no further messages
        return number

    def end(self, number: int, code: int, error: str) -> None:
        """Make a remote shell exit.

        Args:
            number: The number of the request.
            code: The exit code of the daemon.
            error: The reason why the daemon could not be started. Empty if it was started.
        """
        connection = self.waiting.pop(number, None)
        if connection is not None:
            connection.send({"op": "ended", "code": code, "error": error})
            connection.close()

    def gone(self, number: int, host: str, master: str) -> Failure | None:
        """Remove a remote shell that has ended.

        Args:
            number: The number of the request.
            host: The host of the daemon.
            master: The name of algo-1.

        Returns:
            The failure to report if the remote shell ended before its daemon. Otherwise None.
        """
        if self.waiting.pop(number, None) is None:
            return None
        message = f"mpirun's remote shell to {host} was killed."
        return Failure(cause=Cause.PROCESS, message=message, host=master, process="rsh")


def start_daemon(words: list[str], gang: Gang, host: str, runtime_dir: Path, machine: Machine) -> ClusterProcess:
    """Start one of mpirun's daemons on this host.

    Args:
        words: The words of the command line that mpirun passes to a remote shell such as ssh.
        gang: This host's processes.
        host: The name of this host.
        runtime_dir: The private folder for session files.
        machine: This host's machine.

    Raises:
        OSError: the daemon cannot be started.
        ValueError: the command is not one of mpirun's daemons.
    """
    argv, environment = daemons.command(words, gang.environment)
    argv, environment = daemons.of_host(argv, environment, gang.environment, machine)
    argv = daemons.with_own_shell(argv, runtime_dir, machine)
    path = environment.get("PATH") or gang.environment.get("PATH", "")
    environment.update(daemons.session_environment(runtime_dir, path))
    environment.update(daemons.node_environment(argv, host, machine))
    return gang.launch_bare(os.path.basename(argv[0]), Role.LAUNCHER, argv, environment)
