"""Serve requests over a unix socket: fork a process for each request.

A request is a message (:mod:`container.contract.messages`) with the operation ``fork``, together with descriptors. The
server answers with ``forked`` and the ``pid`` of the new process, and with ``ended``, the wait ``status`` and
``max_rss_kb`` when the process has ended. If the server refuses a request, it closes the connection. If the client
closes the connection, the server kills the process.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import os
import resource
import select
import signal
import socket

from container.contract import variables
from container.contract.messages import Message, MessageError
from container.system import forking, processes
from container.system.connection import BlockingConnection

_MOST_DESCRIPTORS = 4


@dataclasses.dataclass
class Request:
    """A client's request, in the process that was forked for it.

    Attributes:
        message: The request.
        descriptors: The descriptors that the client has passed with the request.
        client: The connection to the client.
    """

    message: Message
    descriptors: list[int]
    client: BlockingConnection


def send(client: BlockingConnection, message: Message) -> None:
    """Send a message to a client. Ignore the error if the client has ended."""
    with contextlib.suppress(OSError):  # the server notices that the client has ended when it reads the connection
        client.send(message)


class ForkServer(abc.ABC):
    """A process that forks for each request that it receives. Each forked process leads a process group.

    Args:
        listener: The listening socket to which clients connect.
        name: The name of this process in ps and top.
    """

    def __init__(self, listener: socket.socket, name: str) -> None:
        processes.set_name(name)
        listener.setblocking(False)
        self._listener = listener
        self._clients: dict[int, BlockingConnection] = {}  # by descriptor
        self._forked: dict[int, BlockingConnection] = {}  # pid of a forked process -> client that has requested it
        self._poll = select.poll()
        self._poll.register(listener, select.POLLIN)

    def run(self) -> Request:
        """Serve requests. This method returns only in a forked process.

        Returns:
            The request for which this process was forked.
        """
        processes.become_subreaper()
        read, write = os.pipe()
        os.set_blocking(write, False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        self._poll.register(read, select.POLLIN)
        while True:
            for fd, _ in self._poll.poll(self._patience()):
                if fd == read:
                    os.read(read, 1 << 16)
                    with contextlib.suppress(ChildProcessError):
                        while (ended := os.wait4(-1, os.WNOHANG))[0]:
                            if client := self._forked.pop(ended[0], None):  # otherwise, it was adopted
                                self._ended(client, *ended[1:])
                elif fd == self._listener.fileno():
                    self._accept()
                elif fd in self._clients and (request := self._read(self._clients[fd])) is not None:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    os.close(read)
                    os.close(write)
                    return request

    def _accept(self) -> None:
        """Accept all waiting connections."""
        with contextlib.suppress(OSError):  # no more connections, or no descriptors left
            while True:
                self._add(BlockingConnection(self._listener.accept()[0], limit=variables.VARIABLES_LIMIT))

    def _add(self, client: BlockingConnection) -> None:
        self._clients[client.fileno()] = client
        self._poll.register(client, select.POLLIN)

    @property
    def descriptors(self) -> set[int]:
        """Return the descriptors of the listening socket and of the connections to clients."""
        return {self._listener.fileno(), *self._clients}

    def tell(self, message: Message) -> None:
        """Send a message to all clients that have connected."""
        self._accept()
        for client in self._clients.values():
            send(client, message)

    def _drop(self, client: BlockingConnection) -> None:
        """Close the connection to a client."""
        self._poll.unregister(client)
        del self._clients[client.fileno()]
        client.close()

    def _read(self, client: BlockingConnection) -> Request | None:
        """Read data from a client. Return a request if this process was forked for it."""
        is_open, message = False, None
        with contextlib.suppress(OSError, MessageError):
            is_open = client.read(_MOST_DESCRIPTORS)
            message = client.take()
        if message is None or message["op"] != "fork":
            if message or not is_open:
                self._hung_up(client, orderly=message is not None)
            return None
        request = Request(message, client.take_descriptors(), client)
        pid, why = -1, None
        with contextlib.suppress(OSError):  # the client has ended, or there are too many processes
            why = self._refusal(message)
            pid = -1 if why else forking.fork()
        if pid >= 0:
            with contextlib.suppress(OSError):  # both processes do this, because either may be the first to need it
                os.setpgid(pid, pid)
        if pid == 0:
            self._listener.close()
            for other in self._clients.values():
                if other is not client:
                    other.close()
            return request
        for fd in request.descriptors:
            os.close(fd)
        if pid < 0:
            self._refused(why or "no process could be forked")
            self._drop(client)
        else:
            self._forked[pid] = client
            self._granted(request, pid)
        return None

    def _patience(self) -> float | None:
        """Return the longest time to wait for requests, in milliseconds. Return None for no limit."""
        return None

    def _hung_up(self, client: BlockingConnection, *, orderly: bool) -> None:
        """Handle the end of a client's connection.

        Args:
            client: The connection.
            orderly: Whether the client has announced the end with the message ``end``.
        """
        for pid in [pid for pid, owner in self._forked.items() if owner is client]:
            os.kill(pid, signal.SIGKILL)
        self._drop(client)

    def _granted(self, request: Request, pid: int) -> None:
        """Handle a request for which a process was forked."""
        send(request.client, {"op": "forked", "pid": pid})

    def _ended(self, client: BlockingConnection, status: int, usage: resource.struct_rusage) -> None:
        """Handle the end of a forked process.

        Args:
            client: The connection to the client that has requested the process.
            status: The wait status of the process.
            usage: The resources that the process has used.
        """
        send(client, {"op": "ended", "status": status, "max_rss_kb": usage.ru_maxrss})

    @abc.abstractmethod
    def _refusal(self, message: Message) -> str | None:
        """Return the reason why a request is refused. Return None if the request is granted."""

    @abc.abstractmethod
    def _refused(self, why: str) -> None:
        """Handle a refused request, before the connection to its client is closed."""
