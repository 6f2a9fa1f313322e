"""Connect a supervisor to its clients: the control socket in the record, and the connection to a waiting caller.

The socket and the connection accept requests (:mod:`container.contract.messages`). Only the control socket sends
responses. Only the user can access the socket, because the record's folder is private to the user.
"""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from container.contract.messages import Message
from container.system import sockets
from container.system.asyncio_loop import AsyncioLoop
from container.system.connection import Connection

if TYPE_CHECKING:
    from estimators.supervisor.clients import Clients

#: The longest request, in bytes.
_REQUEST_LIMIT = 1 << 16


class RequestHandler(Protocol):
    """The interface of the object that responds to clients' requests about a job."""

    async def answer(self, message: Message) -> dict[str, Any]:
        """Carry out a request, and return the response. The call may take time."""


class ControlSocket:
    """The ``control.sock`` in the record, which accepts requests of any process of the user.

    Args:
        loop: The event loop that watches the socket.
        path: The path of the socket. The path may be longer than the limit of ``sun_path``.
        job: The object that responds to the requests.
    """

    def __init__(self, loop: AsyncioLoop, path: Path, job: RequestHandler) -> None:
        self._loop = loop
        self._path = path
        self._job = job
        self._clients: set[Connection] = set()
        path.unlink(missing_ok=True)
        self._listener = sockets.listen(path)
        os.chmod(path, 0o600)
        self._listener.setblocking(False)
        loop.add_reader(self._listener.fileno(), self._accept)

    def close(self) -> None:
        """Stop listening and remove the socket."""
        self._loop.remove_reader(self._listener.fileno())
        self._listener.close()
        for client in self._clients:
            client.close()
        with contextlib.suppress(OSError):
            self._path.unlink()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            sock, _ = self._listener.accept()
            client = Connection(self._loop, sock, lambda message: None, lambda reason: None, limit=_REQUEST_LIMIT)
            client.received = lambda message: self._loop.start(self._answer(client, message))
            client.closed = lambda reason: self._clients.discard(client)
            self._clients.add(client)

    async def _answer(self, client: Connection, message: Message) -> None:
        client.send({**await self._job.answer(message), "op": "answer"})


class Attachment:
    """The connection to a caller that waits for the job.

    The end of the caller is reported once. The end is detected by end-of-file on the socket, or by the caller's pid.
    End-of-file alone is not sufficient: if the caller forks without exec, its children keep the socket open after the
    caller's end.

    Args:
        loop: The event loop that watches the connection.
        fd: The supervisor's end of the socket pair.
        caller: The caller's pid. 0 if the pid is unknown.
        clients: The clients of the job. This object responds to requests, and its method ``caller_gone`` is called when
            the caller has ended.
    """

    def __init__(self, loop: AsyncioLoop, fd: int, caller: int, clients: Clients) -> None:
        self._loop = loop
        self._clients = clients
        os.set_inheritable(fd, False)
        self._connection = Connection(
            loop,
            socket.socket(fileno=fd),
            lambda message: loop.start(clients.answer(message)),  # the caller reads the record instead of responses
            lambda reason: self._lost(),
            limit=_REQUEST_LIMIT,
        )
        self._ended = False
        self._pidfd: int | None = None
        if caller:
            try:
                self._pidfd = os.pidfd_open(caller)
                loop.add_reader(self._pidfd, self._lost)
            except ProcessLookupError:
                loop.call_later(0.0, self._lost)
            except OSError:
                self._pidfd = None  # a kernel without pidfds: only end-of-file is watched

    def notify(self) -> None:
        """Notify the caller that the record has new content."""
        if not self._connection.congested:  # a suspended caller needs only one unread message when it resumes
            self._connection.send({"op": "news"})

    def close(self) -> None:
        """Close the connection, so that the caller receives end-of-file."""
        self._ended = True
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None
        self._connection.close()

    def _lost(self) -> None:
        if not self._ended:
            self.close()
            self._clients.caller_gone()
