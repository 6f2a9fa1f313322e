"""Where the ranks of a collective cluster wait for each other before TensorFlow does.

TensorFlow waits in native code, without end, holding Python's lock and taking SIGTERM for itself; and its connections
to a rank that is not there yet back off for a second and more. So the ranks meet here first: each listens on its own
port, looks for the others, and goes on when it has seen them all. Then TensorFlow finds everybody at once.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator, Mapping

from container.contract.errors import DistributedError

#: What a rank that waits here says to whoever connects. TensorFlow's server says something else.
_GREETING = b"fleetfit: waiting\n"
#: How long one connection may take, and the pause between two looks, in seconds.
_CONNECT_TIMEOUT = 2.0
_PAUSE = 0.05
#: How long the others wait for TensorFlow's server on the leader before they go on anyway, in seconds.
_LEADER_TIMEOUT = 5.0


def meet(own: str, others: Mapping[str, str], *, leader: str | None, timeout: float) -> None:
    """Return when every rank has come.

    Args:
        own: This rank's ``address:port``.
        others: The other ranks, name -> ``address:port``.
        leader: The name of the one whose TensorFlow server the others connect to; None on the leader itself.
        timeout: Seconds in all.

    Raises:
        DistributedError: the port is taken, or some did not come; the message names them.
    """
    with _listening(own):
        wait_for(others, timeout)
        # Time for whoever comes last to see us here.
        time.sleep(_PAUSE)
    if leader is not None:
        until = time.monotonic() + _LEADER_TIMEOUT
        while time.monotonic() < until and not serves(others[leader]):
            time.sleep(_PAUSE)


def wait_for(addresses: Mapping[str, str], timeout: float) -> None:
    """Wait until every process listens.

    Args:
        addresses: Name -> ``address:port``.
        timeout: Seconds in all.

    Raises:
        DistributedError: some do not; the message names them.
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
    """Return whether something takes connections at ``address:port``."""
    try:
        with _connected(address):
            return True
    except OSError:
        return False


def serves(address: str) -> bool:
    """Return whether it is something else than a rank that waits in :func:`meet`."""
    try:
        with _connected(address) as connection:
            return connection.recv(len(_GREETING)) != _GREETING
    except TimeoutError:
        return True
    except OSError:
        return False


def names(addresses: Mapping[str, str]) -> str:
    """Format as ``rank 1 (algo-2:7777), rank 3 (algo-3:7777)``; long lists are cut."""
    shown = [f"{name} ({address})" for name, address in addresses.items()]
    return ", ".join(shown[:10]) + (f" and {len(shown) - 10} more" if len(shown) > 10 else "")


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _connected(address: str) -> socket.socket:
    return socket.create_connection(_split(address), timeout=_CONNECT_TIMEOUT)


@contextlib.contextmanager
def _listening(address: str) -> Iterator[None]:
    """Listen at the port, greet whoever connects, and free the port at the end."""
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
                return  # the end
            with contextlib.suppress(OSError), connection:
                connection.sendall(_GREETING)

    thread = threading.Thread(target=greet, daemon=True)
    thread.start()
    try:
        yield
    finally:
        # Closing alone would leave the thread in accept().
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(_CONNECT_TIMEOUT)
