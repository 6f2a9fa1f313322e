"""The hosts' connection to each other: algo-1's toolkit listens, every other host's connects.

The first message is ``{"op": "hello", "host": …, "token": …}``; a connection that says anything else, or does not know
the job's token, is closed. End-of-file means that the peer is lost.
"""

from __future__ import annotations

import os
import socket
import time
from typing import Protocol

from container.contract.messages import Message
from container.system.connection import BACKLOG, Connection
from container.system.loop import Loop, Timer

#: Seconds that a stranger has to say hello.
HELLO_TIMEOUT = 10.0


class HostsListener(Protocol):
    """Is told of the other hosts, on algo-1."""

    def host_joined(self, host: str) -> None:
        """A host has said hello."""

    def host_said(self, host: str, message: Message) -> None:
        """A host has sent a later message."""

    def host_lost(self, host: str, reason: str) -> None:
        """A host's connection has ended."""


class MasterListener(Protocol):
    """Is told of algo-1, on another host."""

    def master_joined(self) -> None:
        """The connection stands."""

    def master_said(self, message: Message) -> None:
        """algo-1 has sent a message."""

    def master_lost(self, reason: str) -> None:
        """The connection could not be made, or ended."""


class ControlServer:
    """algo-1's side: takes the other hosts' connections.

    Args:
        loop: The loop that drives it.
        listener: A listening socket; the server owns it.
        hosts: Is told of the other hosts.
        token: The job's secret, or None where the backend cannot pass one.
        expected: Names of the hosts that may come.
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
        """Send to one host; dropped if it is not connected."""
        if host in self.hosts:
            self.hosts[host].send(message)

    def broadcast(self, message: Message) -> None:
        """Send to every connected host."""
        for connection in list(self.hosts.values()):
            connection.send(message)

    def close(self) -> None:
        """Close everything."""
        self._loop.remove_reader(self._listener.fileno())
        self._listener.close()
        for connection in [*self.hosts.values(), *self._strangers]:
            connection.close()

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return  # it went away again, or we are out of descriptors: it will try again
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
    """Another host's side: connects to algo-1, trying again until the deadline.

    Args:
        loop: The loop that drives it.
        address: Name or address, and port, of algo-1's toolkit.
        master: Is told of algo-1.
        hello: This host's name.
        token: The job's secret, or None.
        deadline: ``time.monotonic()`` after which to give up.
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
        loop.call_later(0.0, self._try)  # not from here: the caller does not hold us yet

    @property
    def connected(self) -> bool:
        """Whether algo-1 can be told something."""
        return self._connection is not None and self._connection.is_open

    def send(self, message: Message) -> None:
        """Send a message to algo-1, when there is a connection; dropped when it has ended."""
        if self._connection is not None:
            self._connection.send(message)
        else:
            self._unsent.append(message)

    def close(self) -> None:
        """Close, and try no more."""
        self._closed = True
        if self._connection is not None:
            self._connection.close()

    def _try(self) -> None:
        if self._closed:
            return
        left = self._deadline - time.monotonic()
        try:
            # A host that is not up yet refuses at once or does not resolve; a dead address takes the whole second.
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
    """Make algo-1's listening socket; port 0 lets the system choose.

    Raises:
        OSError: the port is taken.
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
    """Take over a listening socket that the backend made."""
    os.set_inheritable(fd, False)
    return socket.socket(fileno=fd)


def _same(given: str, expected: str) -> bool:
    import hmac  # it brings OpenSSL along, which a single host can do without

    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), expected.encode())
