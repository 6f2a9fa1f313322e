"""Requests: what was asked is answered, and connections and bodies have limits."""

from __future__ import annotations

import contextlib
import http.client
import socket
import sys
import threading
from collections.abc import Iterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import signing
from serving import status_of
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from waiting import until

from estimators.cli import servers
from estimators.job.errors import BackendError, UnsupportedError
from estimators.service import web
from estimators.service.endpoint import BODY_LIMIT, Endpoint

REQUEST = b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 2\r\n\r\nab"
SIGNED = b"POST / HTTP/1.1\r\n" + b"".join(
    f"{name}: {value}\r\n".encode() for name, value in signing.signed("ListTrainingJobs")[0]
)
SECONDS = 60.0


async def done(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer at once."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body"})


def slowly(begun: threading.Semaphore, go_on: threading.Event) -> ASGIApp:
    """Answer when the test lets it go on."""

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        begun.release()
        await run_in_threadpool(go_on.wait, SECONDS)
        await done(scope, receive, send)

    return application


@contextlib.contextmanager
def serving(application: ASGIApp, grace: float = 30, **more: Any) -> Iterator[tuple[str, int]]:
    """A server; gives its address."""
    listener = web.listen(0)
    with web.Server(application, listener, grace, **more):
        yield web.HOST, listener.getsockname()[1]


def connect(address: tuple[str, int]) -> socket.socket:
    return socket.create_connection(address, timeout=SECONDS)


def test_a_server_is_on_loopback_and_says_that_its_port_is_taken() -> None:
    with web.listen(0) as listener:
        host, port = listener.getsockname()
        assert host == "127.0.0.1"
        with connect((host, port)), listener.accept()[0] as accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        with pytest.raises(BackendError) as error:
            web.listen(port, "--s3-port")
    assert str(error.value) == (
        f"port {port} of 127.0.0.1 is not available: Address already in use. Choose another port with --s3-port."
    )


def test_without_its_packages_nothing_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    servers.check_packages()
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(UnsupportedError, match=r"uvicorn is not installed.*fleetfit install service"):
        servers.check_packages()


def test_requests_are_refused_while_there_are_too_many_connections() -> None:
    with serving(done) as address, connect(address) as client:
        client.sendall(REQUEST)
        assert status_of(client) == 200

        def status() -> int | None:
            with connect(address) as another:
                another.sendall(REQUEST)
                return status_of(another)

        with contextlib.ExitStack() as opened:
            for _ in range(web.CONNECTION_LIMIT):
                opened.enter_context(connect(address))
            assert status() == 503
        until(lambda: status() == 200)


def test_what_was_asked_before_the_end_is_answered() -> None:
    begun, go_on = threading.Semaphore(0), threading.Event()
    listener = web.listen(0)
    address = listener.getsockname()
    server = web.Server(slowly(begun, go_on), listener, 30)
    server.start()
    end = threading.Thread(target=server.close)
    with connect(address) as asking:
        with connect(address) as half:
            half.sendall(REQUEST[:20])
            asking.sendall(REQUEST)
            assert begun.acquire(timeout=SECONDS)
            end.start()
            assert status_of(half) is None  # the end has begun
        with pytest.raises(ConnectionRefusedError):
            connect(address)
        go_on.set()
        assert status_of(asking) == 200
    end.join(SECONDS)
    assert not end.is_alive()


@pytest.mark.parametrize(
    ("answered", "then"),
    [(b"", b""), (b"", REQUEST[:20]), (REQUEST, REQUEST[:20]), (REQUEST[:-1], REQUEST[-1:])],
    ids=["silent", "headers", "next headers", "rest of a body"],
)
def test_a_connection_whose_headers_do_not_come_is_closed(answered: bytes, then: bytes) -> None:
    with serving(done, header_s=0.3) as address, connect(address) as client:
        client.sendall(answered)
        if answered:
            assert status_of(client) == 200
        client.sendall(then)
        assert status_of(client) is None


def test_the_time_for_headers_does_not_limit_answers() -> None:
    begun, go_on = threading.Semaphore(0), threading.Event()
    with serving(slowly(begun, go_on), header_s=0.3) as address, connect(address) as asking:
        asking.sendall(REQUEST)
        assert begun.acquire(timeout=SECONDS)
        with connect(address) as later:
            assert status_of(later) is None  # its time for headers is over
        go_on.set()
        assert status_of(asking) == 200


def test_an_answer_that_its_client_does_not_take_ends() -> None:
    ended = threading.Event()

    async def flood(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % (1 << 40))]})
        async with anyio.create_task_group() as group:

            async def write() -> None:
                while True:
                    await send({"type": "http.response.body", "body": bytes(1 << 20), "more_body": True})
                    await anyio.lowlevel.checkpoint()

            group.start_soon(write)
            while (await receive())["type"] != "http.disconnect":
                pass
            group.cancel_scope.cancel()
        ended.set()

    with web.listen(0) as listener:
        assert listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 1000 * web.STALL_SECONDS
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 200)
        with web.Server(flood, listener, 30), connect(listener.getsockname()) as client:
            client.sendall(REQUEST)
            assert ended.wait(SECONDS)


def test_the_end_waits_for_no_request_that_has_not_come_whole() -> None:
    begun = threading.Semaphore(0)

    async def read(scope: Scope, receive: Receive, send: Send) -> None:
        begun.release()
        with contextlib.suppress(ClientDisconnect):
            await web.read_body(Request(scope, receive), 2)

    listener = web.listen(0)
    address = listener.getsockname()
    server = web.Server(read, listener, 3600)
    server.start()
    with connect(address) as silent, connect(address) as headers, connect(address) as body:
        headers.sendall(REQUEST[:20])
        body.sendall(REQUEST[:-1])
        assert begun.acquire(timeout=SECONDS)
        end = threading.Thread(target=server.close)
        end.start()
        assert [status_of(client) for client in (silent, headers, body)] == [None] * 3
    end.join(SECONDS)
    assert not end.is_alive()


@pytest.mark.parametrize(("end", "logged"), [("too early", []), ("never", []), ("fault", [ValueError])])
def test_the_log_has_tracebacks_of_faults_only(
    end: str, logged: list[type[Exception]], caplog: pytest.LogCaptureFixture
) -> None:
    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        """Send less than promised, as for a file that has become shorter; or stall; or fail."""
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"a", "more_body": end != "too early"})
        if end == "never":
            await anyio.sleep_forever()
        if end == "fault":
            raise ValueError("a fault")

    listener = web.listen(0)
    with connect(listener.getsockname()) as client:
        with web.Server(application, listener, 0):
            client.sendall(REQUEST)
            answer = http.client.HTTPResponse(client)
            answer.begin()
            assert answer.read(1) == b"a"
        with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
            answer.read()
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == logged


@pytest.mark.parametrize(
    ("head", "status"),
    [(b"Content-Length: 2", 408), (b"Content-Length: %d" % (BODY_LIMIT + 1), 413), (b"Content-Length : 2", 400)],
)
def test_the_endpoint_refuses_what_is_too_slow_too_large_or_unreadable(head: bytes, status: int) -> None:
    endpoint = Endpoint(signing.KEYS, {}, lambda: signing.NOW, body_s=0.2 if status == 408 else SECONDS)
    with serving(endpoint) as address, connect(address) as client:
        client.sendall(SIGNED + head + b"\r\n\r\n")
        if status == 413:
            client.sendall(bytes(BODY_LIMIT + 1))
        assert status_of(client) == status
        assert status_of(client) is None


@pytest.mark.parametrize(
    ("head", "code"),
    [
        (b"POST / HTTP/1.1\r\nHost: here\r\n", b"MissingAuthenticationToken"),
        (SIGNED.replace(b"Credential=FL", b"Credential=XX"), b"UnrecognizedClientException"),
        (SIGNED.replace(b"/us-east-1/", b"/eu-west-1/"), b"InvalidSignatureException"),
        (SIGNED.replace(b"X-Amz-Date: 2026", b"X-Amz-Date: 2025"), b"IncompleteSignatureException"),
    ],
)
def test_the_endpoint_refuses_strangers_before_it_reads_their_body(head: bytes, code: bytes) -> None:
    with serving(Endpoint(signing.KEYS, {}, lambda: signing.NOW)) as address, connect(address) as client:
        client.sendall(head + b"Content-Length: %d\r\n\r\n" % BODY_LIMIT)  # nothing of the body
        answer = http.client.HTTPResponse(client)
        answer.begin()
        assert answer.status == 403
        assert code in answer.read()


def test_the_endpoint_reads_few_bodies_at_once() -> None:
    endpoint = Endpoint(signing.KEYS, {}, lambda: signing.NOW, bodies=2)
    headers, body = signing.signed("ListTrainingJobs")
    scope = {"type": "http", "method": "POST", "raw_path": b"/", "query_string": b""}
    scope["headers"] = [(name.lower().encode(), value.encode()) for name, value in headers]
    reading, statuses = [], []

    async def ask() -> None:
        come = anyio.Event()

        async def receive() -> Message:
            reading.append(1)
            await come.wait()
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Message) -> None:
            statuses.append(message.get("status"))

        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(endpoint, scope, receive, send)
            await anyio.wait_all_tasks_blocked()
            assert len(reading) == 2
            come.set()

    anyio.run(ask)
    assert sorted(filter(None, statuses)) == [400] * 3
