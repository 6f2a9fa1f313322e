"""Where hosts arrive: both ends prove themselves, and nobody else gets in."""

from __future__ import annotations

import base64
import contextlib
import os
import socket
import sys
import threading
from collections.abc import Iterator

import pytest
from loops import RunUntil

from container.system.loop import Loop
from estimators.backends.hosts import joining
from estimators.backends.hosts.arrivals import ID, NONCE, PROOF, Arrivals


@pytest.fixture
def arrivals(loop: Loop) -> Iterator[Arrivals]:
    """A listener of loopback."""
    made = Arrivals(loop, "127.0.0.1")
    yield made
    made.close()


def connect(arrivals: Arrivals, identity: bytes, key: bytes, said: list[object]) -> threading.Thread:
    """A host's side, beside the loop."""

    def run() -> None:
        try:
            words = [base64.b64encode(value).decode() for value in (identity, key)]
            said.append(joining.connect("127.0.0.1", arrivals.port, *words))
        except OSError as error:
            said.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_a_host_that_is_expected_gets_in_once(arrivals: Arrivals, run_until: RunUntil) -> None:
    came: list[int] = []
    identity, key = arrivals.expect(came.append)
    said: list[object] = []
    connect(arrivals, identity, key, said)
    run_until(lambda: bool(came and said))
    [connection] = said
    assert isinstance(connection, socket.socket)
    with contextlib.closing(connection), os.fdopen(came[0], "rb", buffering=0) as ours:
        connection.sendall(b"frame")
        assert ours.read(5) == b"frame"
    connect(arrivals, identity, key, said)
    run_until(lambda: len(said) == 2)
    assert "): the connection was closed" in str(said[1])


@pytest.mark.parametrize("wrong", ["identity", "key", "forgotten"])
def test_who_cannot_prove_itself_is_told_nothing(wrong: str, arrivals: Arrivals, run_until: RunUntil) -> None:
    came: list[int] = []
    identity, key = arrivals.expect(came.append)
    if wrong == "forgotten":
        arrivals.forget(identity)
    said: list[object] = []
    connect(arrivals, b"x" * ID if wrong == "identity" else identity, b"x" * 32 if wrong == "key" else key, said)
    run_until(lambda: bool(said))
    assert "the connection was closed" in str(said[0]) and not came


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


def test_what_says_nothing_or_too_little_holds_nobody_up(arrivals: Arrivals, run_until: RunUntil) -> None:
    came: list[int] = []
    identity, key = arrivals.expect(came.append)
    silent = socket.create_connection(("127.0.0.1", arrivals.port))
    short = socket.create_connection(("127.0.0.1", arrivals.port))
    short.sendall(identity)
    short.close()
    said: list[object] = []
    connect(arrivals, identity, key, said)
    run_until(lambda: bool(came and said))
    arrivals.close()
    assert silent.recv(NONCE) and not silent.recv(1)  # its end, not an answer
    silent.close()
    os.close(came[0])
    said[0].close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("python", [None, sys.executable])
def test_another_python_than_the_callers_is_refused_before_anything_is_sent_there(python: str | None) -> None:
    with pytest.raises(OSError, match=r"its Python is 3\.\d+, but fit\(\) runs on 2\.7; name another interpreter"):
        joining.start_agent({"python": python, "version": "2.7"}, b"", {})
