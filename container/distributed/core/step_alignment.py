"""Make ranks that read different amounts of data do the same number of steps.

For each batch, every rank sends its number of records to rank 0, and receives the total of all ranks. A rank that has
no more records continues with batches of weight zero until all ranks have read their records. These messages are sent
by the thread that prepares batches ahead of the training. This thread uses a separate connection, because only the
training itself may use the strategy's collective operations.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import warnings
from collections.abc import Sequence
from typing import Any

from container.contract import variables
from container.contract.errors import DistributedError

#: A rank's message: iteration, batch (-1: the rank leaves the iteration), records, whether its batch is full.
_SAYS = struct.Struct("!qqqq")
#: Rank 0's response: records of all ranks (-1: a rank has left), number of ranks with a full batch.
_HEARS = struct.Struct("!qq")
_HELLO = struct.Struct("!16sq")
_TIMEOUT = 60.0
#: If the ranks' numbers of records differ by more than this factor, a warning is printed.
_UNEVEN = 1.5

LEFT = -1


class Agreement:
    """A rank's connection to rank 0, over which the ranks exchange their numbers of records. :func:`agree` creates the
    connection.

    Args:
        connection: The connection to rank 0's :class:`_Server`.
        size: Number of ranks.

    Attributes:
        size: Number of ranks.
        records: Number of records that this rank has read in the latest iteration.
    """

    def __init__(self, connection: socket.socket, size: int) -> None:
        self.size = size
        self.records = 0
        self._connection = connection
        self._lock = threading.Lock()
        self._iterations = 0

    def begin(self) -> int:
        """Begin a new iteration over the data, and return the number of the iteration, from 1. All ranks must begin the
        same iterations.
        """
        self._iterations += 1
        self.records = 0
        return self._iterations

    def batch(self, iteration: int, number: int, records: int, full: bool) -> tuple[int, int]:
        """Send this rank's number of records in a batch, and wait for the numbers of the other ranks.

        Args:
            iteration: The number of the iteration, from :meth:`begin`.
            number: The number of the batch in the iteration, from 0.
            records: Number of records that this rank has in the batch.
            full: Whether this rank's batch is full.

        Returns:
            The total number of records of all ranks, and the number of ranks with a full batch. Both numbers are 0 if a
            rank has left the iteration.

        Raises:
            DistributedError: the connection is lost.
        """
        try:
            with self._lock:
                self._connection.sendall(_SAYS.pack(iteration, number, records, full))
                total, ranks = _HEARS.unpack(_receive(self._connection, _HEARS.size))
        except OSError as error:
            raise DistributedError(f"the ranks can no longer agree on their batches: {error}.") from error
        self.records += records
        return (0, 0) if total == LEFT else (total, ranks)

    def leave(self, iteration: int) -> None:
        """Report to rank 0 that this rank has stopped reading. The iteration then ends on all ranks."""
        with contextlib.suppress(OSError), self._lock:
            self._connection.sendall(_SAYS.pack(iteration, LEFT, 0, 0))


def agree(collectives: Any, host: str) -> Agreement:
    """Connect this rank to rank 0, so that the ranks can exchange their numbers of records. All ranks must call this
    function.

    Args:
        collectives: The collective operations of the ranks.
        host: This host's name.

    Raises:
        DistributedError: rank 0 cannot be reached.
    """
    server = _Server(collectives.size) if collectives.rank == 0 else None
    said = (server.port, server.token, _names(host)) if server is not None else None
    port, token, names = collectives.broadcast_object(said)
    reasons = []
    for name in names if collectives.rank else ("127.0.0.1",):
        try:
            connection = socket.create_connection((name, port), timeout=_TIMEOUT)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(_HELLO.pack(token, collectives.rank))
            if _receive(connection, 16) != token:
                raise OSError("another program listens there")
        except OSError as error:
            reasons.append(f"{name}:{port}: {error}")
            continue
        connection.settimeout(None)
        return Agreement(connection, collectives.size)
    raise DistributedError(f"rank {collectives.rank} cannot reach rank 0 to agree on batches: {'; '.join(reasons)}.")


def _names(host: str) -> tuple[str, ...]:
    """Return the names and addresses under which other hosts may be able to connect to this host."""
    if os.environ.get(variables.SHARED_MACHINE) == "1":
        return ("127.0.0.1",)
    found = [host, socket.gethostname()]
    with contextlib.suppress(OSError):
        found.append(socket.gethostbyname(socket.gethostname()))
    return (*dict.fromkeys(found), "127.0.0.1")


class _Server:
    """A server on rank 0 that adds up the numbers of records of all ranks. The server has one thread for each rank.

    Args:
        size: Number of ranks.
    """

    def __init__(self, size: int) -> None:
        import secrets

        self.token = secrets.token_bytes(16)
        both = socket.has_dualstack_ipv6()
        self._listener = socket.create_server(
            ("", 0), family=socket.AF_INET6 if both else socket.AF_INET, dualstack_ipv6=both, backlog=size
        )
        self.port = int(self._listener.getsockname()[1])
        self._size = size
        self._state = threading.Condition()
        self._said: dict[tuple[int, int], dict[int, tuple[int, int]]] = {}
        self._sums: dict[int, list[int]] = {}
        self._over = 0  # iterations up to this number are over, because a rank has left them
        self._warned = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        joined: set[int] = set()
        with self._listener:
            while len(joined) < self._size:
                connection, _ = self._listener.accept()
                with contextlib.suppress(OSError):
                    connection.settimeout(_TIMEOUT)
                    token, rank = _HELLO.unpack(_receive(connection, _HELLO.size))
                    if token == self.token:
                        connection.settimeout(None)
                        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                        connection.sendall(token)
                        joined.add(rank)
                        threading.Thread(target=self._serve, args=(connection, rank), daemon=True).start()

    def _serve(self, connection: socket.socket, rank: int) -> None:
        try:
            with connection:
                while True:
                    iteration, number, records, full = _SAYS.unpack(_receive(connection, _SAYS.size))
                    if number == LEFT:
                        self._leave(iteration)
                    else:
                        connection.sendall(_HEARS.pack(*self._batch(rank, iteration, number, records, full)))
        except OSError:
            self._leave(1 << 62)  # the rank has ended

    def _leave(self, iteration: int) -> None:
        with self._state:
            self._over = max(self._over, iteration)
            self._state.notify_all()

    def _batch(self, rank: int, iteration: int, number: int, records: int, full: int) -> tuple[int, int]:
        with self._state:
            if iteration - 1 > self._over:  # a rank that has begun an iteration has left the earlier ones
                self._over = iteration - 1
                self._state.notify_all()
            said = self._said.setdefault((iteration, number), {})
            said[rank] = (records, full)
            if len(said) == self._size:
                self._note(iteration, said)
                # every rank has received the response for the previous batch, and has sent its numbers for this one
                self._said.pop((iteration, number - 1), None)
                self._state.notify_all()
            while len(said) < self._size and iteration > self._over:
                self._state.wait()
            if len(said) < self._size:
                return LEFT, 0
            return sum(of[0] for of in said.values()), sum(of[1] for of in said.values())

    def _note(self, iteration: int, said: dict[int, tuple[int, int]]) -> None:
        """Add the numbers of records in a batch to each rank's sum in the iteration. An iteration ends with a batch for
        which no rank has records. Then print a warning if the ranks' sums are uneven. The warning is printed only once.

        Args:
            iteration: The number of the iteration.
            said: The messages of all ranks about the batch, by rank: the number of records, and whether the batch is
                full.
        """
        sums = self._sums.setdefault(iteration, [0] * self._size)
        for rank, (records, _) in said.items():
            sums[rank] += records
        if any(records for records, _ in said.values()):
            return
        self._sums.pop(iteration)
        if not self._warned and (text := imbalance(sums)) is not None:
            self._warned = True
            warnings.warn(text, stacklevel=1)


def imbalance(records: Sequence[int]) -> str | None:
    """Return a warning if the ranks have read uneven numbers of records. Otherwise return None. Pure."""
    least, most = min(records), max(records)
    if most == 0 or most <= _UNEVEN * least:
        return None
    ranks = f"rank {records.index(most)} read {most:,} records, rank {records.index(least)} read {least:,}"
    return (
        f"the ranks' shares of the data are uneven: {ranks}. A rank without further records uses batches of weight "
        "zero until all ranks are done. Use objects of about the same size, and make their number a multiple of the "
        "number of hosts (see `fleetfit shard`)."
    )


def _receive(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        data = connection.recv(size - len(found))
        if not data:
            raise OSError("the other rank closed the connection")
        found += data
    return found
