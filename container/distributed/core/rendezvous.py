"""Make processes wait for each other before TensorFlow connects them: the ranks of a ``collective_all_reduce`` job, and
the coordinator and its parameter servers.

TensorFlow waits for other ranks in native code, without a time limit. Meanwhile, TensorFlow holds the GIL and handles
SIGTERM itself. After a failed connection attempt, TensorFlow tries again only after a second or more. Therefore the
ranks first wait for each other in this module. Each rank listens on its own port, connects to all other ranks, and
continues when all connections have succeeded. Then TensorFlow can connect at once.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator, Mapping

from container.contract.errors import DistributedError
from container.contract.names import listed

#: The bytes that a rank in :func:`meet` sends over each connection. TensorFlow's server sends different bytes.
_GREETING = b"fleetfit: waiting\n"
#: Time limit of one connection, and the pause between two attempts, in seconds.
_CONNECT_TIMEOUT = 2.0
_PAUSE = 0.05
#: How long the other ranks wait for the leader's TensorFlow server before they continue anyway, in seconds.
_LEADER_TIMEOUT = 5.0


def meet(own: str, others: Mapping[str, str], *, leader: str | None, timeout: float) -> None:
    """Wait until all ranks have called this function.

    Args:
        own: The ``address:port`` of this rank.
        others: The ``address:port`` of each other rank, by the rank's name.
        leader: Name of the rank whose TensorFlow server the other ranks connect to. This function also waits until this
            server runs, for at most ``_LEADER_TIMEOUT`` seconds. None on the leader itself.
        timeout: Total time limit in seconds.

    Raises:
        DistributedError: this rank's port is in use, or some ranks have not called this function in time. The message
            names these ranks.
    """
    with _listening(own):
        wait_for(others, timeout)
        # Give the last rank time to see that this rank listens.
        time.sleep(_PAUSE)
    if leader is not None:
        until = time.monotonic() + _LEADER_TIMEOUT
        while time.monotonic() < until and not serves(others[leader]):
            time.sleep(_PAUSE)


def wait_for(addresses: Mapping[str, str], timeout: float) -> None:
    """Wait until every process listens on its port.

    Args:
        addresses: The ``address:port`` of each process, by the process's name.
        timeout: Total time limit in seconds.

    Raises:
        DistributedError: some processes do not listen in time. The message names these processes.
    """
    deadline = time.monotonic() + timeout
    left = dict(addresses)
    while True:
        left = {name: address for name, address in left.items() if not listens(address)}
        if not left:
            return
        if time.monotonic() > deadline:
            raise DistributedError(f"no answer within {timeout:g} s from {names(left)}.")
        time.sleep(_PAUSE)


def listens(address: str) -> bool:
    """Return whether a program accepts connections at ``address:port``."""
    try:
        with _connected(address):
            return True
    except OSError:
        return False


def serves(address: str) -> bool:
    """Return whether a program other than a rank in :func:`meet` accepts connections at ``address:port``."""
    try:
        with _connected(address) as connection:
            return connection.recv(len(_GREETING)) != _GREETING
    except TimeoutError:
        return True
    except OSError:
        return False


def names(addresses: Mapping[str, str]) -> str:
    """Format addresses as ``rank 1 (algo-2:7777), rank 3 (algo-3:7777)``."""
    return listed([f"{name} ({address})" for name, address in addresses.items()])


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _connected(address: str) -> socket.socket:
    return socket.create_connection(_split(address), timeout=_CONNECT_TIMEOUT)


@contextlib.contextmanager
def _listening(address: str) -> Iterator[None]:
    """Listen on the port of an address, and send a greeting to every connection. Close the port when the block ends."""
    port = _split(address)[1]
    try:
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        listener = socket.create_server(("", port), family=family, backlog=512, dualstack_ipv6=both)
    except OSError as error:
        raise DistributedError(f"port {port} of this rank ({address}) cannot be used: {error.strerror}.") from error

    def greet() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return  # the listener was closed
            with contextlib.suppress(OSError), connection:
                connection.sendall(_GREETING)

    thread = threading.Thread(target=greet, daemon=True)
    thread.start()
    try:
        yield
    finally:
        # close() alone would leave the thread in accept().
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(_CONNECT_TIMEOUT)
