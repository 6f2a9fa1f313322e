"""The hosts' connection: real sockets, on one loop."""

from __future__ import annotations

import gc
import json
import os
import random
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from container.contract.messages import LIMIT, Message
from container.system.loop import Loop
from container.toolkit import control

TOKEN = "sesame"


class Server:
    """A server, and what it was told."""

    def __init__(self, loop: Loop, token: str | None = TOKEN, port: int = 0) -> None:
        self.log: list[Any] = []
        listener = control.listen("127.0.0.1", port)
        self.address = listener.getsockname()
        self.server = control.ControlServer(loop, listener, self, token=token, expected={"algo-2", "algo-3"})

    def host_joined(self, host: str) -> None:
        self.log.append(("joined", host))

    def host_said(self, host: str, message: Message) -> None:
        self.log.append((host, message))

    def host_lost(self, host: str, reason: str) -> None:
        self.log.append(("lost", host, reason))


class Client:
    """A client, and what it was told."""

    def __init__(self, loop: Loop, address: tuple[str, int], host: str, token: str | None = TOKEN, seconds: float = 5):
        self.log: list[Any] = []
        deadline = time.monotonic() + seconds
        self.client = control.ControlClient(loop, address, self, hello=host, token=token, deadline=deadline)

    def master_joined(self) -> None:
        self.log.append("joined")

    def master_said(self, message: Message) -> None:
        self.log.append(message)

    def master_lost(self, reason: str) -> None:
        self.log.append(("lost", reason))


RunUntil = Callable[..., None]


@pytest.fixture
def server(loop: Loop) -> Iterator[Server]:
    one = Server(loop)
    yield one
    one.server.close()


@pytest.fixture
def client(loop: Loop, server: Server, run_until: RunUntil) -> Iterator[Client]:
    """algo-2's client, which has joined."""
    one = Client(loop, server.address, "algo-2")
    run_until(lambda: server.log == [("joined", "algo-2")] and one.client.connected)
    yield one
    one.client.close()


def test_messages_go_both_ways_in_order(client: Client, server: Server, run_until: RunUntil) -> None:
    messages = [{"op": "x", "n": number, "text": "ü\n\0" * (number % 50)} for number in range(500)]
    for message in messages:
        client.client.send(message)
        server.server.send("algo-2", message)
    run_until(lambda: len(server.log) == 501 and len(client.log) == 501)
    assert server.log[1:] == [("algo-2", message) for message in messages]
    assert client.log[1:] == messages
    server.server.send("algo-9", {"op": "x"})  # nobody of that name: dropped
    server.server.broadcast({"op": "all"})
    run_until(lambda: client.log[-1] == {"op": "all"})
    client.client.close()
    run_until(lambda: server.log[-1] == ("lost", "algo-2", "the connection was closed"))


def test_large_messages_do_not_block_the_loop(client: Client, server: Server, run_until: RunUntil) -> None:
    text = "x" * (LIMIT - 100)
    for number in range(10):
        server.server.send("algo-2", {"op": "big", "n": number, "text": text})
    run_until(lambda: len(client.log) == 11)
    assert [message["n"] for message in client.log[1:]] == list(range(10))
    with pytest.raises(ValueError, match="over the limit"):
        server.server.send("algo-2", {"op": "big", "text": text + "x" * 200})


def test_what_was_said_last_arrives_before_the_end(client: Client, server: Server, run_until: RunUntil) -> None:
    for number in range(100):
        client.client.send({"op": "last", "n": number})
    client.client.close()
    run_until(lambda: server.log[-1][0] == "lost")
    assert [item[1]["n"] for item in server.log[1:-1]] == list(range(100))


def line(message: object) -> bytes:
    return json.dumps(message).encode() + b"\n"


HELLO = {"op": "hello", "host": "algo-2", "token": TOKEN}


def say_until_closed(data: bytes, server: Server, run_until: RunUntil) -> None:
    """Connect and say something, until the server, which tells of nobody, closes the connection."""
    stranger = socket.create_connection(server.address)
    stranger.setblocking(False)
    sent = 0

    def closed() -> bool:
        nonlocal sent
        try:
            if sent < len(data):
                sent += stranger.send(data[sent:])
            return stranger.recv(10) == b""
        except BlockingIOError:
            return False
        except (ConnectionResetError, BrokenPipeError):
            return True

    run_until(closed)
    assert server.log == []
    stranger.close()


@pytest.mark.parametrize(
    "data",
    [
        line({**HELLO, "token": "wrong"}),
        line({**HELLO, "token": None}),
        line({**HELLO, "token": 3}),
        line({**HELLO, "token": ["sesame"]}),
        line({**HELLO, "token": "ü" * 100}),
        line({**HELLO, "token": "\ud800"}),
        line({"op": "hello", "host": "algo-2"}),
        line({**HELLO, "host": "algo-1"}),
        line({**HELLO, "host": "algo-9"}),
        line({**HELLO, "host": None}),
        line({**HELLO, "host": ["algo-2"]}),
        line({**HELLO, "host": {}}),
        line({**HELLO, "op": "ready"}),
        line({**HELLO, "op": 3}),
        line([HELLO]),
        line("hello"),
        b"GET / HTTP/1.1\r\n\r\n",
        b"\n",
        b"x" * (LIMIT + 1),
        b"\xff\xff\xff\xff\n",
        b"[" * 500_000 + b"\n",
        random.Random(7).randbytes(3000) + b"\n",
    ],
)  # fmt: skip
def test_strangers_are_shown_the_door(data: bytes, loop: Loop, server: Server, run_until: RunUntil) -> None:
    say_until_closed(data, server, run_until)
    client = Client(loop, server.address, "algo-2")  # and those who know the word still get in
    run_until(lambda: server.log == [("joined", "algo-2")])
    client.client.close()


def test_a_stranger_that_says_nothing_is_let_go(
    server: Server, run_until: RunUntil, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "HELLO_TIMEOUT", 0.05)
    say_until_closed(b"", server, run_until)


def test_a_host_joins_once(client: Client, loop: Loop, server: Server, run_until: RunUntil) -> None:
    second = Client(loop, server.address, "algo-2")
    run_until(lambda: second.log[-1:] == [("lost", "the connection was closed")])
    assert server.log == [("joined", "algo-2")]
    client.client.send({"op": "still here"})
    run_until(lambda: server.log[-1] == ("algo-2", {"op": "still here"}))


def test_a_host_that_breaks_the_protocol_is_lost(loop: Loop, server: Server, run_until: RunUntil) -> None:
    sock = socket.create_connection(server.address)
    sock.sendall(line(HELLO) + line({"op": "ready"}) + b"x" * (LIMIT + 1))
    run_until(lambda: server.log and server.log[-1][0] == "lost")
    assert server.log[:2] == [("joined", "algo-2"), ("algo-2", {"op": "ready"})]
    assert "over the limit" in server.log[-1][2]
    sock.close()


def free_address() -> tuple[str, int]:
    with control.listen("127.0.0.1") as free:
        return free.getsockname()


def test_a_client_tries_until_its_deadline_and_says_where(loop: Loop, run_until: RunUntil) -> None:
    address = free_address()
    client = Client(loop, address, "algo-2", seconds=0.3)
    run_until(lambda: client.log)
    assert f"no connection to 127.0.0.1:{address[1]} could be made" in client.log[0][1]


def test_a_client_that_comes_first_waits_for_the_server(loop: Loop, run_until: RunUntil) -> None:
    address = free_address()
    client = Client(loop, address, "algo-2")
    loop.run_once(0.05)
    client.client.send({"op": "early"})
    server = Server(loop, port=address[1])
    run_until(lambda: client.log == ["joined"] and len(server.log) == 2)
    assert server.log == [("joined", "algo-2"), ("algo-2", {"op": "early"})]
    client.client.close()
    server.server.close()


def test_without_a_token_the_names_decide(loop: Loop, run_until: RunUntil) -> None:
    server = Server(loop, token=None)
    client = Client(loop, server.address, "algo-3", token=None)
    run_until(lambda: server.log == [("joined", "algo-3")])
    client.client.close()
    server.server.close()


def test_nothing_is_left_open(loop: Loop, run_until: RunUntil) -> None:
    gc.collect()  # what other tests have left; some of it may be closed later still
    before = set(os.listdir("/proc/self/fd"))
    server = Server(loop)
    clients = [Client(loop, server.address, host) for host in ("algo-2", "algo-3")]
    run_until(lambda: len(server.log) == 2)
    for client in clients:
        client.client.close()
    server.server.close()
    assert set(os.listdir("/proc/self/fd")) <= before
