"""Where hosts arrive: one port of this machine's, at which a host shows that it is one that was started.

Each end proves to the other that it has the key of the host, without saying it: the host got it by what started it
there, Ray or Spark. What cannot do so is closed, and told nothing. Then the connection belongs to the host's agent.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import socket
from collections.abc import Callable

from container.system.loop import Loop

#: The id of a host, a number that is used once, and the proof, in bytes; the host's side is in :mod:`.joining`.
ID, NONCE, PROOF = 16, 32, 32
#: How long an arrival may take to say who it is, in seconds, and how many may be at it.
_WITHIN_S, _AT_ONCE = 10.0, 256


def proof(key: bytes, side: bytes, first: bytes, second: bytes) -> bytes:
    """Return what only who has the key can say to these two numbers."""
    return hmac.new(key, side + first + second, hashlib.sha256).digest()


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

    def __init__(self, loop: Loop, address: str) -> None:
        self._loop = loop
        self._expected: dict[bytes, tuple[bytes, Callable[[int], None]]] = {}
        self._arriving: set[_Arrival] = set()
        self._socket = socket.create_server((address, 0), backlog=128)
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]
        loop.add_reader(self._socket.fileno(), self._accept)

    def expect(self, arrived: Callable[[int], None]) -> tuple[bytes, bytes]:
        """Return the id and the key for a host, whose connection is given when it arrives, once."""
        identity, key = os.urandom(ID), os.urandom(32)
        self._expected[identity] = (key, arrived)
        return identity, key

    def forget(self, identity: bytes) -> None:
        """Expect a host no more."""
        self._expected.pop(identity, None)

    def close(self) -> None:
        """Listen no more; who has arrived stays."""
        self._expected.clear()
        for arrival in list(self._arriving):
            arrival.close()
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._socket.accept()
        except OSError:  # it is gone already, or there are no descriptors left: who waits tries again
            return
        if len(self._arriving) >= _AT_ONCE:
            connection.close()
            return
        self._arriving.add(_Arrival(self._loop, self, connection))

    def over(self, arrival: _Arrival) -> None:
        """An arrival was taken in, or turned away."""
        self._arriving.discard(arrival)

    def take(self, said: bytes, nonce: bytes) -> tuple[bytes, Callable[[int], None]] | None:
        """Return our own proof and who waits for the host; None for one that is not expected."""
        identity, theirs, shown = said[:ID], said[ID : ID + NONCE], said[ID + NONCE :]
        key, arrived = self._expected.get(identity, (os.urandom(32), None))
        if not hmac.compare_digest(shown, proof(key, b"host", nonce, theirs)) or arrived is None:
            return None
        del self._expected[identity]
        return proof(key, b"supervisor", theirs, nonce), arrived


class _Arrival:
    """A connection that has not shown yet whose it is."""

    def __init__(self, loop: Loop, arrivals: Arrivals, connection: socket.socket) -> None:
        self._loop = loop
        self._arrivals = arrivals
        self._connection = connection
        self._nonce = os.urandom(NONCE)
        self._said = b""
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._timer = loop.call_later(_WITHIN_S, self.close)
        loop.add_reader(connection.fileno(), self._readable)
        with contextlib.suppress(OSError):  # a new connection has room for it; one that is gone is read to its end
            connection.send(self._nonce)

    def _readable(self) -> None:
        try:
            data = self._connection.recv(ID + NONCE + PROOF - len(self._said))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._said += data
        if not data:
            self.close()
        elif len(self._said) == ID + NONCE + PROOF:
            taken = self._arrivals.take(self._said, self._nonce)
            if taken is None:
                self.close()
                return
            ours, arrived = taken
            self._leave()
            with contextlib.suppress(OSError):  # whoever waits for the host hears of its end from the descriptor
                self._connection.send(ours)
            arrived(self._connection.detach())

    def _leave(self) -> None:
        self._timer.cancel()
        self._loop.remove_reader(self._connection.fileno())
        self._arrivals.over(self)

    def close(self) -> None:
        """Turn it away."""
        if self._connection.fileno() >= 0:
            self._leave()
            self._connection.close()
