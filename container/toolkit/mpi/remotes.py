"""mpirun's daemons on other hosts: its remote shell asks algo-1, which has the host's toolkit start one as its child.

What the remote shell and the daemon's command line are is :mod:`container.toolkit.mpi.daemons`' and
:mod:`container.toolkit.mpi.rsh`'s.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from container.contract.environment import Machine
from container.contract.failures import Cause, Failure
from container.contract.messages import Message
from container.contract.plan import Role
from container.system.connection import Connection
from container.toolkit import control
from container.toolkit.mpi import daemons
from container.toolkit.process_group import Gang, Member


class Requests:
    """algo-1's side: the remote shells that wait for their daemons to end.

    Args:
        host: This host's name.
        hosts: Every host's name.
        spawn: Starts a daemon on this host, given the request's number and its words.
        hung_up: Called with the failure that a remote shell's end is, if nothing else explains it.
    """

    def __init__(
        self,
        host: str,
        hosts: tuple[str, ...],
        *,
        spawn: Callable[[int, list[str]], None],
        hung_up: Callable[[Failure], None],
    ) -> None:
        self._host = host
        self._hosts = hosts
        self._spawn = spawn
        self._hung_up = hung_up
        self._waiting: dict[int, Connection] = {}
        self._next = 0

    @property
    def waiting(self) -> bool:
        """Whether any remote shell still waits for its daemon."""
        return bool(self._waiting)

    def take(self, connection: Connection, host: str, argv: list[str], server: control.Server | None) -> None:
        """mpirun wants its daemon on a host.

        Args:
            connection: The remote shell's.
            host: The host that it wants.
            argv: The words that it would have given to ssh.
            server: The other hosts' connections; None where there are no others.
        """
        number = self._next
        self._next += 1
        self._waiting[number] = connection
        connection.received = lambda message: None  # it has nothing more to say
        connection.closed = lambda reason: self._gone(number, host)
        if host not in self._hosts:
            self.ended(number, 255, f"{host} is not a host of this job")
        elif host == self._host:
            self._spawn(number, argv)
        elif server is None or host not in server.hosts:
            self.ended(number, 255, f"{host} is not connected")
        else:
            server.send(host, {"op": "spawn", "id": number, "argv": argv})

    def ended(self, number: int, code: int, error: str) -> None:
        """The daemon has ended, or could not be started: let its remote shell end likewise."""
        connection = self._waiting.pop(number, None)
        if connection is not None:
            connection.send({"op": "ended", "code": code, "error": error})
            connection.close()

    def _gone(self, number: int, host: str) -> None:
        """The remote shell went away before its daemon: it, or mpirun, was killed."""
        if self._waiting.pop(number, None) is not None:
            self._hung_up(
                Failure(
                    cause=Cause.PROCESS,
                    message=f"mpirun's remote shell to {host} was killed.",
                    host=self._host,
                    process="rsh",
                )
            )


class Daemons:
    """A host's side: the daemons that run here.

    Args:
        host: This host's name.
        runtime_dir: The private folder for session files.
        machine: What this host runs on.
        answer: Says on algo-1 how a request has ended: :meth:`Requests.ended`, or a message that comes to it.
        failed: Called with the reason why a daemon cannot be started. mpirun would speak of firewalls.
    """

    def __init__(
        self,
        host: str,
        runtime_dir: Path,
        machine: Machine,
        *,
        answer: Callable[[int, int, str], None],
        failed: Callable[[Failure], None],
    ) -> None:
        self._host = host
        self._machine = machine
        self._runtime_dir = runtime_dir
        self._answer = answer
        self._failed = failed
        self._members: list[Member] = []

    def __contains__(self, member: Member) -> bool:
        return member in self._members

    @property
    def first_ended(self) -> Member | None:
        """One that has ended."""
        return next((member for member in self._members if member.ended), None)

    def spawn(self, number: int, words: list[str], gang: Gang) -> None:
        """Start the command line that mpirun would have given to ssh: words that a remote shell would read."""
        try:
            argv, environment = daemons.command(words, gang.environment)
            argv, environment = daemons.of_host(argv, environment, gang.environment, self._machine)
            argv = daemons.with_own_shell(argv, self._runtime_dir, self._machine)
            path = environment.get("PATH") or gang.environment.get("PATH", "")
            environment.update(daemons.session_environment(self._runtime_dir, path))
            environment.update(daemons.node_environment(argv, self._host, self._machine))
            member = gang.launch_bare(os.path.basename(argv[0]), Role.LAUNCHER, argv, environment)
        except (OSError, ValueError) as error:
            message = f"mpirun's daemon could not be started: {error}"
            self._failed(Failure(cause=Cause.LAUNCH, message=message, host=self._host))
            self._answer(number, 255, f"{self._host}: {error}")
            return
        self._members.append(member)
        ended: Callable[[Member], None] = gang.on_ended

        def on_ended(other: Member) -> None:
            if other is member:
                self._answer(number, member.exit_code if member.exit_code is not None else 255, "")
            ended(other)

        gang.on_ended = on_ended


def answer_by(report: Callable[[Message], None]) -> Callable[[int, int, str], None]:
    """Return how a host other than algo-1 answers: by a message.

    Args:
        report: Says something to algo-1.
    """
    return lambda number, code, error: report({"op": "remote_ended", "id": number, "code": code, "error": error})
