"""Where hosts arrive: one port of this machine's, at which a host shows that it is one that was started.

Each end proves to the other that it has the key of the host, without saying it: the host got it by what started it
there, Ray or Spark. What cannot do so is closed, and told nothing. Then the connection belongs to the host's agent.
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

#: The id of a host, a number that is used once, and the proof, in bytes; the host's side is in :mod:`.joining`.
ID, NONCE, PROOF = 16, 32, 32
#: How long an arrival may take to say who it is, in seconds, and how many may be at it.
_WITHIN_S, _AT_ONCE = 10.0, 256


def proof(key: bytes, side: bytes, first: bytes, second: bytes) -> bytes:
    """Return what only who has the key can say to these two numbers."""
    return hmac.new(key, side + first + second, hashlib.sha256).digest()


class Arrival(NamedTuple):
    """A host that has arrived: its connection, and the address that it came from."""

    connection: socket.socket
    address: str


class Expected:
    """A host that is to arrive.

    Attributes:
        identity: Its id.
        key: Its key.
        arrival: Its arrival, in the future.
    """

    def __init__(self, loop: AsyncioLoop) -> None:
        self.identity, self.key = os.urandom(ID), os.urandom(32)
        self.arrival: asyncio.Future[Arrival] = loop.create_future()


class Arrivals:
    """Listens for the hosts that are expected.

    Args:
        loop: The supervisor's loop.
        address: Where the hosts reach this machine.

    Attributes:
        port: Where it listens.

    Raises:
        OSError: the address is not of this machine.
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
        """Let a host in when it arrives, once."""
        self._expected[host.identity] = host

    def forget(self, host: Expected) -> None:
        """Expect a host no more."""
        self._expected.pop(host.identity, None)

    def close(self) -> None:
        """Listen no more; who has arrived stays."""
        self._expected.clear()
        for arriving in self._arriving:
            arriving.cancel()
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()

    def _accept(self) -> None:
        try:
            connection, address = self._socket.accept()
        except OSError:  # it is gone already, or there are no descriptors left: who waits tries again
            return
        if len(self._arriving) >= _AT_ONCE:
            connection.close()
            return
        arriving = self._loop.start(self._let_in(Arrival(connection, address[0])))
        self._arriving.add(arriving)
        arriving.add_done_callback(self._arriving.discard)

    async def _let_in(self, arrival: Arrival) -> None:
        """Give a connection to the host that it proves to be; turn any other away."""
        connection, nonce = arrival.connection, os.urandom(NONCE)
        with contextlib.ExitStack() as turned_away, contextlib.suppress(OSError, asyncio.TimeoutError):
            turned_away.enter_context(connection)
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.send(nonce)  # a new connection has room for it
            said = await within(_WITHIN_S, _read(connection, ID + NONCE + PROOF))
            identity, theirs, shown = said[:ID], said[ID : ID + NONCE], said[ID + NONCE :]
            host = self._expected.get(identity)
            key = host.key if host is not None else os.urandom(32)
            if not hmac.compare_digest(shown, proof(key, b"host", nonce, theirs)) or host is None:
                return
            with contextlib.suppress(OSError):  # whoever waits for the host hears of its end from the connection
                connection.send(proof(key, b"supervisor", theirs, nonce))
            turned_away.pop_all()
            self.forget(host)
            host.arrival.set_result(arrival)


async def _read(connection: socket.socket, size: int) -> bytes:
    """Read so many bytes, or raise OSError."""
    data = b""
    while len(data) < size:
        more = await asyncio.get_running_loop().sock_recv(connection, size - len(data))
        if not more:
            raise OSError("the connection was closed")
        data += more
    return data
