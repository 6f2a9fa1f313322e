"""Where hosts arrive: both ends prove themselves, and nobody else gets in."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import socket
import threading
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from container.system.asyncio_loop import AsyncioLoop
from estimators.backends.hosts import joining
from estimators.backends.hosts.arrivals import ID, NONCE, PROOF, Arrivals, Expected


@pytest.fixture
def arrivals(asyncio_loop: AsyncioLoop) -> Iterator[Arrivals]:
    """A listener of loopback."""
    made = Arrivals(asyncio_loop, "127.0.0.1")
    yield made
    made.close()


@pytest.fixture
def host(asyncio_loop: AsyncioLoop, arrivals: Arrivals) -> Expected:
    """A host that is expected."""
    made = Expected(asyncio_loop)
    arrivals.expect(made)
    return made


def connecting(arrivals: Arrivals, identity: bytes, key: bytes) -> Coroutine[Any, Any, socket.socket]:
    """A host's side, beside the loop."""
    words = [base64.b64encode(value).decode() for value in (identity, key)]
    return asyncio.to_thread(joining.connect, "127.0.0.1", arrivals.port, *words)


def test_a_host_that_is_expected_gets_in_once(asyncio_loop: AsyncioLoop, arrivals: Arrivals, host: Expected) -> None:
    async def come() -> None:
        theirs = await connecting(arrivals, host.identity, host.key)
        ours = await host.arrival
        with contextlib.closing(theirs), contextlib.closing(ours.connection):
            assert ours.address == "127.0.0.1"
            theirs.sendall(b"frame")
            assert await asyncio.get_running_loop().sock_recv(ours.connection, 5) == b"frame"
        with pytest.raises(OSError, match=r"\): the connection was closed"):
            await connecting(arrivals, host.identity, host.key)

    asyncio_loop.run(come())


@pytest.mark.parametrize("wrong", ["identity", "key", "forgotten"])
def test_who_cannot_prove_itself_is_told_nothing(
    wrong: str, asyncio_loop: AsyncioLoop, arrivals: Arrivals, host: Expected
) -> None:
    if wrong == "forgotten":
        arrivals.forget(host)
    identity = b"x" * ID if wrong == "identity" else host.identity
    with pytest.raises(OSError, match="the connection was closed"):
        asyncio_loop.run(connecting(arrivals, identity, b"x" * 32 if wrong == "key" else host.key))
    assert not host.arrival.done()


def test_a_host_does_not_take_just_any_listener_for_the_supervisor() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"n" * NONCE)
                joining._exactly(connection, ID + NONCE + PROOF)
                connection.sendall(b"p" * PROOF)

        thread = threading.Thread(target=answer)
        thread.start()
        words = [base64.b64encode(b"x" * size).decode() for size in (ID, 32)]
        with pytest.raises(OSError, match="another program answers there"):
            joining.connect("127.0.0.1", server.getsockname()[1], *words)
        thread.join()


def test_what_says_nothing_or_too_little_holds_nobody_up(
    asyncio_loop: AsyncioLoop, arrivals: Arrivals, host: Expected
) -> None:
    async def come() -> None:
        silent = socket.create_connection(("127.0.0.1", arrivals.port))
        short = socket.create_connection(("127.0.0.1", arrivals.port))
        short.sendall(host.identity)
        short.close()
        (await connecting(arrivals, host.identity, host.key)).close()
        (await host.arrival).connection.close()
        arrivals.close()
        # Its end, not an answer.
        with contextlib.closing(silent):
            assert await asyncio.to_thread(lambda: silent.recv(NONCE) and not silent.recv(1))

    asyncio_loop.run(come())
