"""mpirun's daemons on other hosts: its remote shell asks algo-1, which has the host's toolkit start one as its child.

What the remote shell and the daemon's command line are is :mod:`container.toolkit.mpi.daemons`' and
:mod:`container.toolkit.mpi.rsh`'s.
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
    """algo-1's side: the remote shells that wait for their daemons to end.

    Attributes:
        waiting: Their connections, by the number of the request.
    """

    def __init__(self) -> None:
        self.waiting: dict[int, Connection] = {}
        self._next = 0

    def add(self, connection: Connection) -> int:
        """Let a remote shell wait, and return the number of its request."""
        number = self._next
        self._next += 1
        self.waiting[number] = connection
        connection.received = lambda message: None  # it has nothing more to say
        return number

    def end(self, number: int, code: int, error: str) -> None:
        """Let a remote shell end as its daemon has ended, or since that could not be started."""
        connection = self.waiting.pop(number, None)
        if connection is not None:
            connection.send({"op": "ended", "code": code, "error": error})
            connection.close()

    def gone(self, number: int, host: str, master: str) -> Failure | None:
        """Take note that a remote shell went away, and return the failure that this is if its daemon had not ended.

        Args:
            number: The request's.
            host: The host that it wanted.
            master: algo-1's name.
        """
        if self.waiting.pop(number, None) is None:
            return None
        message = f"mpirun's remote shell to {host} was killed."
        return Failure(cause=Cause.PROCESS, message=message, host=master, process="rsh")


def start_daemon(words: list[str], gang: Gang, host: str, runtime_dir: Path, machine: Machine) -> ClusterProcess:
    """Start a daemon on this host.

    Args:
        words: The command line that mpirun would have given to ssh: words that a remote shell would read.
        gang: This host's processes.
        host: This host's name.
        runtime_dir: The private folder for session files.
        machine: What this host runs on.

    Raises:
        OSError: it cannot be started.
        ValueError: it is none of mpirun's daemons.
    """
    argv, environment = daemons.command(words, gang.environment)
    argv, environment = daemons.of_host(argv, environment, gang.environment, machine)
    argv = daemons.with_own_shell(argv, runtime_dir, machine)
    path = environment.get("PATH") or gang.environment.get("PATH", "")
    environment.update(daemons.session_environment(runtime_dir, path))
    environment.update(daemons.node_environment(argv, host, machine))
    return gang.launch_bare(os.path.basename(argv[0]), Role.LAUNCHER, argv, environment)
