"""Accept connections from hosts that a cluster (Ray or Spark) has started for a job, on one port of this machine.

Each host has an id and a key. Ray or Spark delivers both when it starts the host. The host and the supervisor prove to
each other with an HMAC that they know the key, without sending the key over the connection. A connection without a
valid proof is closed without an answer. Through the accepted connection, the host's agent communicates with the
supervisor.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import os
import socket
from typing import NamedTuple

from container.system.asyncio_loop import AsyncioLoop, within

#: Sizes in bytes of a host's id, of a nonce and of a proof. :mod:`.joining`, the host's side, uses the same sizes.
ID, NONCE, PROOF = 16, 32, 32
#: Seconds within which a new connection must authenticate, and the maximum number of connections that authenticate at
#: the same time.
_WITHIN_S, _AT_ONCE = 10.0, 256


def proof(key: bytes, side: bytes, first: bytes, second: bytes) -> bytes:
    """Return the HMAC of two nonces. The value proves that its sender knows the host's key.

    Args:
        key: The host's key.
        side: The side that sends the proof: ``b"host"`` or ``b"supervisor"``.
        first: The nonce that the other side has sent.
        second: The nonce that the sender of the proof has chosen.
    """
    return hmac.new(key, side + first + second, hashlib.sha256).digest()


class Arrival(NamedTuple):
    """The connection of a host, and the IP address from which the host has connected."""

    connection: socket.socket
    address: str


class Expected:
    """A host that the job has requested and that has not connected yet.

    Attributes:
        identity: The random id of the host.
        key: The random key of the host.
        arrival: A future whose result is set when the host has connected.
    """

    def __init__(self, loop: AsyncioLoop) -> None:
        self.identity, self.key = os.urandom(ID), os.urandom(32)
        self.arrival: asyncio.Future[Arrival] = loop.create_future()


class Arrivals:
    """A listening socket that accepts connections from the expected hosts.

    Args:
        loop: The supervisor's event loop.
        address: The address of this machine that the hosts connect to.

    Attributes:
        port: The port number of the socket.

    Raises:
        OSError: the address does not belong to this machine.
    """

    def __init__(self, loop: AsyncioLoop, address: str) -> None:
        self._loop = loop
        self._expected: dict[bytes, Expected] = {}
        self._arriving: set[asyncio.Task[None]] = set()
        self._socket = socket.create_server((address, 0), backlog=128)
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]
        loop.add_reader(self._socket.fileno(), self._accept)

    def expect(self, host: Expected) -> None:
        """Add a host to the expected hosts: the first connection with a valid proof of this host is accepted."""
        self._expected[host.identity] = host

    def forget(self, host: Expected) -> None:
        """Remove a host from the expected hosts: later connections of this host are closed."""
        self._expected.pop(host.identity, None)

    def close(self) -> None:
        """Stop listening. Connections that were already accepted stay open."""
        self._expected.clear()
        for arriving in self._arriving:
            arriving.cancel()
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()

    def _accept(self) -> None:
        try:
            connection, address = self._socket.accept()
        except OSError:  # the peer has closed the connection, or no descriptor is free now
            return
        if len(self._arriving) >= _AT_ONCE:
            connection.close()
            return
        arriving = self._loop.start(self._let_in(Arrival(connection, address[0])))
        self._arriving.add(arriving)
        arriving.add_done_callback(self._arriving.discard)

    async def _let_in(self, arrival: Arrival) -> None:
        """Authenticate a connection and assign it to its host. Close the connection if the host's proof is wrong."""
        connection, nonce = arrival.connection, os.urandom(NONCE)
        with contextlib.ExitStack() as turned_away, contextlib.suppress(OSError, asyncio.TimeoutError):
            turned_away.enter_context(connection)
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.send(nonce)  # cannot block: the send buffer of a new connection is empty
            said = await within(_WITHIN_S, _read(connection, ID + NONCE + PROOF))
            identity, theirs, shown = said[:ID], said[ID : ID + NONCE], said[ID + NONCE :]
            host = self._expected.get(identity)
            key = host.key if host is not None else os.urandom(32)
            if not hmac.compare_digest(shown, proof(key, b"host", nonce, theirs)) or host is None:
                return
            with contextlib.suppress(OSError):  # if the host is already lost, the agent's connection reports the loss
                connection.send(proof(key, b"supervisor", theirs, nonce))
            turned_away.pop_all()
            self.forget(host)
            host.arrival.set_result(arrival)


async def _read(connection: socket.socket, size: int) -> bytes:
    """Read exactly ``size`` bytes.

    Raises:
        OSError: the connection was closed before ``size`` bytes were read.
    """
    data = b""
    while len(data) < size:
        more = await asyncio.get_running_loop().sock_recv(connection, size - len(data))
        if not more:
            raise OSError("the connection was closed")
        data += more
    return data
