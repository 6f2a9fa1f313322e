"""Connect the hosts with each other: the toolkit of the first host, algo-1, listens, and every other host's toolkit
connects to it.

The first message of a host is ``{"op": "hello", "host": …, "token": …}``. algo-1 closes a connection if its first
message is different, has a wrong token, or names a host that is unknown or already connected. When a connection ends,
the host at its other end counts as lost.
"""

from __future__ import annotations

import os
import socket
import time
from typing import Protocol

from container.contract.messages import Message
from container.system.connection import BACKLOG, Connection
from container.system.loop import Loop, Timer

#: Time limit for the message "hello" of a new connection, in seconds.
HELLO_TIMEOUT = 10.0


class HostsListener(Protocol):
    """A receiver, on algo-1, of events about the other hosts."""

    def host_joined(self, host: str) -> None:
        """Handle the message "hello" of a host."""

    def host_said(self, host: str, message: Message) -> None:
        """Handle a message that a host has sent after "hello"."""

    def host_lost(self, host: str, reason: str) -> None:
        """Handle the end of a host's connection. ``reason`` says why the connection ended."""


class MasterListener(Protocol):
    """A receiver, on every host except algo-1, of events about algo-1."""

    def master_joined(self) -> None:
        """Handle the beginning of the connection."""

    def master_said(self, message: Message) -> None:
        """Handle a message of algo-1."""

    def master_lost(self, reason: str) -> None:
        """Handle the end of the connection, or a failure to connect."""


class ControlServer:
    """The server on algo-1 that accepts the other hosts' connections.

    Args:
        loop: The event loop.
        listener: The listening socket, which the server closes.
        hosts: The receiver of events about the other hosts.
        token: The job's secret. None if the backend cannot pass a secret to the hosts.
        expected: The names of the hosts that may connect.
    """

    def __init__(
        self,
        loop: Loop,
        listener: socket.socket,
        hosts: HostsListener,
        *,
        token: str | None,
        expected: set[str],
    ) -> None:
        self._loop = loop
        self._listener = listener
        self._token = token
        self._expected = expected
        self._told = hosts
        self._strangers: dict[Connection, Timer] = {}
        self.hosts: dict[str, Connection] = {}
        listener.setblocking(False)
        loop.add_reader(listener.fileno(), self._accept)

    def send(self, host: str, message: Message) -> None:
        """Send a message to a host. The message is dropped if the host is not connected."""
        if host in self.hosts:
            self.hosts[host].send(message)

    def broadcast(self, message: Message) -> None:
        """Send a message to every connected host."""
        for connection in list(self.hosts.values()):
            connection.send(message)

    def close(self) -> None:
        """Close the listening socket and all connections."""
        self._loop.remove_reader(self._listener.fileno())
        self._listener.close()
        for connection in [*self.hosts.values(), *self._strangers]:
            connection.close()

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return  # the connection was closed again, or there are too many open descriptors: the client will retry
        connection = Connection(self._loop, sock, lambda message: None, lambda reason: None)
        connection.received = lambda message: self._hello(connection, message)
        connection.closed = lambda reason: self._forget(connection)
        self._strangers[connection] = self._loop.call_later(HELLO_TIMEOUT, lambda: self._forget(connection))

    def _forget(self, connection: Connection) -> None:
        timer = self._strangers.pop(connection, None)
        if timer is not None:
            timer.cancel()
        connection.close()

    def _hello(self, connection: Connection, message: Message) -> None:
        host = message.get("host")
        token = message.get("token") or ""
        known = self._token is None or (isinstance(token, str) and _same(token, self._token))
        if message["op"] != "hello" or not known or not isinstance(host, str):
            self._forget(connection)
            return
        if host not in self._expected or host in self.hosts:
            self._forget(connection)
            return
        self._strangers.pop(connection).cancel()
        self.hosts[host] = connection
        connection.received = lambda later: self._told.host_said(host, later)
        connection.closed = lambda reason: self._gone(host, reason)
        self._told.host_joined(host)

    def _gone(self, host: str, reason: str) -> None:
        self.hosts.pop(host, None)
        self._told.host_lost(host, reason)


class ControlClient:
    """The client on every host except algo-1. The client tries to connect to algo-1 until the deadline.

    Args:
        loop: The event loop.
        address: The name or address, and the port, of algo-1's toolkit.
        master: The receiver of events about algo-1.
        hello: The name of this host, for the message "hello".
        token: The job's secret. None if there is no secret.
        deadline: The value of ``time.monotonic()`` after which the client stops trying.
    """

    def __init__(
        self,
        loop: Loop,
        address: tuple[str, int],
        master: MasterListener,
        *,
        hello: str,
        token: str | None,
        deadline: float,
    ) -> None:
        self._loop = loop
        self._address = address
        self._hello = hello
        self._token = token
        self._deadline = deadline
        self._told = master
        self._unsent: list[Message] = []
        self._pause = 0.01
        self._closed = False
        self._connection: Connection | None = None
        loop.call_later(0.0, self._try)  # not directly: the caller does not have a reference to this object yet

    @property
    def connected(self) -> bool:
        """Return whether the client is connected to algo-1."""
        return self._connection is not None and self._connection.is_open

    def send(self, message: Message) -> None:
        """Send a message to algo-1. If the client is not connected yet, the message is sent later.

        The message is dropped if the connection has ended.
        """
        if self._connection is not None:
            self._connection.send(message)
        else:
            self._unsent.append(message)

    def close(self) -> None:
        """Close the connection, and stop trying to connect."""
        self._closed = True
        if self._connection is not None:
            self._connection.close()

    def _try(self) -> None:
        if self._closed:
            return
        left = self._deadline - time.monotonic()
        try:
            # This fails at once if algo-1 is not running yet, and after a second if the address does not answer.
            sock = socket.create_connection(self._address, timeout=min(1.0, max(0.01, left)))
        except OSError as error:
            if left <= 0:
                self._told.master_lost(f"no connection to {self._address[0]}:{self._address[1]} could be made: {error}")
                return
            self._loop.call_later(self._pause, self._try)
            self._pause = min(self._pause * 2, 1.0)
            return
        self._connection = Connection(self._loop, sock, self._told.master_said, self._told.master_lost)
        for message in ({"op": "hello", "host": self._hello, "token": self._token}, *self._unsent):
            self._connection.send(message)
        self._told.master_joined()


def listen(address: str = "", port: int = 0) -> socket.socket:
    """Create algo-1's listening socket. If ``port`` is 0, the system chooses a free port.

    Raises:
        OSError: the port is in use.
    """
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, port))
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def inherited_listener(fd: int) -> socket.socket:
    """Return the listening socket that the backend has created and this process has inherited."""
    os.set_inheritable(fd, False)
    return socket.socket(fileno=fd)


def _same(given: str, expected: str) -> bool:
    import hmac  # imported here because it loads OpenSSL, which a single host does not need

    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), expected.encode())
