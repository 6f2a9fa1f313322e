"""Connections: a request has a time limit as a whole, and those that do nothing make room for others."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from serving import status_of
from waiting import until

from estimators.service import web
from estimators.service.protocol import Answer

REQUEST = b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\nab"
SECONDS = 60.0


def signed(method: str, target: str, headers: object, body: bytes, admit: Callable[[], None]) -> Answer:
    """The answer to a request with a key of ours, as all of :data:`REQUEST` are here."""
    if body == b"ab":
        admit()
    return Answer(200, "text/plain", b"done")


@contextlib.contextmanager
def serving(respond: Callable[..., Answer] = signed) -> Iterator[Any]:
    """A server; gives a function that opens a connection to it."""
    with contextlib.ExitStack() as opened, web.Server(("127.0.0.1", 0), respond) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield lambda: opened.enter_context(socket.create_connection(server.server_address[:2], timeout=SECONDS))
        finally:
            server.shutdown()
            thread.join()


def answer(connection: socket.socket) -> bytes:
    """What comes next; nothing where the connection is closed."""
    try:
        return connection.recv(65536)
    except ConnectionResetError:
        return b""


@pytest.mark.parametrize(
    "part", [b"P", b"POST / HTTP/1.1\r\nA: ", b"POST / HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n"]
)
def test_a_request_that_comes_byte_by_byte_is_ended(part: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit for each byte alone would let it go on for ever."""
    monkeypatch.setattr(web, "REQUEST_SECONDS", 0.3)
    monkeypatch.setattr(web, "HEADER_SECONDS", 0.3)
    with serving() as connect:
        slow = connect()
        slow.sendall(part)
        slow.settimeout(0.01)  # between two bytes
        while True:
            try:
                slow.sendall(b"x")
                assert slow.recv(65536) == b""
            except TimeoutError:
                continue
            except (ConnectionResetError, BrokenPipeError):
                pass
            break


def test_connections_that_wait_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web.Server, "connection_limit", 3)
    with serving() as connect:
        waiting = [connect() for _ in range(3)]
        waiting[0].sendall(REQUEST)  # whether it has been served before or not
        assert answer(waiting[0]).startswith(b"HTTP/1.1 200")

        def served() -> bool:
            new = connect()
            new.sendall(REQUEST)
            return answer(new).startswith(b"HTTP/1.1 200")

        for _ in range(4):
            until(served)  # the others' threads may only be beginning to wait
        closed, _, _ = select.select(waiting, [], [], SECONDS)
        assert answer(closed[0]) == b""


def test_those_that_are_being_answered_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web.Server, "connection_limit", 2)
    begun, go_on = threading.Semaphore(0), threading.Event()

    def respond(*request: Any) -> Answer:
        request[-1]()
        begun.release()
        go_on.wait(SECONDS)
        return Answer(200, "text/plain", b"done")

    with serving(respond) as connect:
        busy = [connect() for _ in range(2)]
        for connection in busy:
            connection.sendall(REQUEST)
        for _ in busy:
            assert begun.acquire(timeout=SECONDS)
        assert answer(connect()).startswith(b"HTTP/1.1 503")
        go_on.set()
        for connection in busy:
            assert answer(connection).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("half", [b"", b"P", b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nab"])
def test_strangers_take_no_place_of_those_with_a_key(half: bytes) -> None:
    """300 connections with half a request each, or none, and nobody who has a key is kept out."""
    with serving() as connect:
        before = connect()
        before.sendall(REQUEST)
        assert answer(before).startswith(b"HTTP/1.1 200")
        strangers = [connect() for _ in range(300)]
        for stranger in strangers:
            with contextlib.suppress(OSError):  # closed already
                stranger.sendall(half)
        for number in range(3):
            new = connect()
            new.sendall(REQUEST)
            assert answer(new).startswith(b"HTTP/1.1 200"), number
        before.sendall(REQUEST)
        assert answer(before).startswith(b"HTTP/1.1 200")
        assert answer(strangers[0]) == b""  # the first of them went


def test_a_stranger_stays_one_when_it_was_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "STRANGER_LIMIT", 2)
    with serving() as connect:
        stranger = connect()
        stranger.sendall(REQUEST.replace(b"ab", b"no"))
        assert answer(stranger).startswith(b"HTTP/1.1 200")
        others = [connect() for _ in range(2)]
        assert answer(stranger) == b""
        others[0].sendall(REQUEST)
        assert answer(others[0]).startswith(b"HTTP/1.1 200")


def test_a_stranger_that_sends_nothing_is_not_waited_for_as_a_client_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "HEADER_SECONDS", 0.2)
    with serving() as connect:
        assert answer(connect()) == b""


UNREADABLE = [
    b"Transfer-Encoding : chunked",
    b"Transfer-Encoding\t: chunked",
    b"Content-Length : 2",
    b"no colon at all",
    b": no name",
    b" folded: at once",
]


@pytest.mark.parametrize(
    ("head", "statuses"),
    [
        *((one + b"\r\nContent-Length: 2", (400, 411)) for one in UNREADABLE),
        *((b"Content-Length: 2\r\n" + one, (400, 411)) for one in UNREADABLE),
        (b"Transfer-Encoding: chunked", (411,)),
        (b"Expect: 100-continue\r\nContent-Length: %d" % (web.BODY_LIMIT + 1), (413,)),
    ],
)
def test_what_cannot_be_read_or_is_too_large_is_refused(head: bytes, statuses: tuple[int, ...]) -> None:
    """What follows it would be taken for no header at all, and somebody else might read it as one."""
    asked: list[object] = []

    def respond(*request: object) -> Answer:
        asked.append(request)
        return Answer(200, "text/plain", b"done")

    with serving(respond) as connect:
        connection = connect()
        connection.sendall(b"POST / HTTP/1.1\r\n" + head + b"\r\n\r\nab")
        assert status_of(connection) in statuses
        assert status_of(connection) is None
    assert not asked


def test_a_client_that_asks_first_is_told_to_go_on() -> None:
    with serving() as connect:
        connection = connect()
        connection.sendall(b"POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 100 ")
        connection.sendall(b"ab")
        assert status_of(connection) == 200


def test_an_answer_that_is_taken_slowly_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "REQUEST_SECONDS", 0.3)
    size = 32 << 20
    with serving(lambda *request: Answer(200, "text/plain", b"x" * size)) as connect:
        connection = connect()
        connection.sendall(REQUEST)
        received = 0
        with contextlib.suppress(ConnectionResetError):
            while data := connection.recv(16):  # all of it would be two million calls
                received += len(data)
        assert received < size


def test_what_was_asked_before_the_end_is_answered() -> None:
    begun, go_on = threading.Semaphore(0), threading.Event()

    def respond(*request: Any) -> Answer:
        begun.release()
        go_on.wait(SECONDS)
        return Answer(200, "text/plain", b"done")

    server = web.Server(("127.0.0.1", 0), respond)
    address = server.server_address[:2]
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    serving.start()
    end = threading.Thread(target=server.close)
    with socket.create_connection(address, timeout=SECONDS) as asking:
        with socket.create_connection(address, timeout=SECONDS) as half:
            half.sendall(REQUEST[:-1])
            asking.sendall(REQUEST)
            assert begun.acquire(timeout=SECONDS)
            end.start()
            assert status_of(half) is None  # the end has begun
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, timeout=SECONDS)
        go_on.set()
        assert status_of(asking) == 200
    end.join(SECONDS)
    serving.join(SECONDS)
    assert not end.is_alive()
