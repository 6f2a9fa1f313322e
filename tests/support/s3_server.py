"""A real S3 server for tests, and a proxy in front of it that makes faults.

::

    def test_it(s3: Bucket, faults: Faults) -> None:
        s3.put("train/part-0", content)  # a bucket of this test's own
        faults.cut(after=1000)  # what the code under test goes through
        ...

The fixtures (``tests/integration/data/conftest.py``) set the environment so that boto3 and every job find the proxy.
"""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import os
import socket
import socketserver
import threading
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from botocore.config import Config

from estimators.service.s3.keys import OWN
from estimators.service.s3.server import S3Server


class Bucket:
    """One bucket of a server, written past the proxy.

    Attributes:
        name: Its name.
        folder: The folder that it is.
    """

    def __init__(self, server: S3Server, name: str) -> None:
        self.server = server
        self.name = name
        self.folder = server.folder / name
        self.folder.mkdir()

    @property
    def client(self) -> Any:
        """A boto3 client of the server itself."""
        return client_of(self.server.endpoint, self.server.key, self.server.secret)

    def uri(self, key: str = "") -> str:
        """``s3://bucket/key``."""
        return f"s3://{self.name}/{key}"

    def put(self, key: str, content: bytes) -> str:
        """Write an object (as a file: quicker than a request) and return its URI."""
        path = self.folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return self.uri(key)

    def get(self, key: str) -> bytes:
        """An object's content."""
        return (self.folder / key).read_bytes()

    def names(self) -> list[str]:
        """Every key that is a file, sorted."""
        found = []
        for folder, folders, names in os.walk(self.folder):
            folders[:] = [name for name in folders if name != OWN]
            found += [os.path.relpath(os.path.join(folder, name), self.folder) for name in names]
        return sorted(found)


def client_of(endpoint: str, key: str, secret: str, *, region: str = "us-east-1", config: Config | None = None) -> Any:
    """A boto3 client that depends on nothing of the environment."""
    import boto3

    return boto3.session.Session().client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        region_name=region,
        config=config,
    )


@dataclasses.dataclass
class Fault:
    """One kind of fault.

    Attributes:
        kind: ``cut``, ``stall``, ``unavailable``, ``unavailable-short``, ``delay``, ``dribble``, ``hold``, ``corrupt``,
            ``truncate``.
        key: Only requests whose path contains this.
        method: Only requests of this method.
        times: To how many requests it still happens.
        after: At which byte of the response's body (of the object, for ``corrupt``); after how many each time, for
            ``dribble``.
        seconds: How long a delay, a stall or a pause is.
        release: Ends a hold.
    """

    kind: str
    key: str
    method: str
    times: int
    after: int = 0
    seconds: float = 0.0
    status: int = 503
    release: threading.Event = dataclasses.field(default_factory=threading.Event)


@dataclasses.dataclass(frozen=True)
class Seen:
    """A request that came by."""

    method: str
    path: str
    range: str | None
    fault: str | None


class Faults:
    """The proxy: passes everything on, and makes the faults that it was told to.

    Args:
        server: The server behind it.
    """

    def __init__(self, server: S3Server) -> None:
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self.seen: list[Seen] = []
        self._ended = threading.Event()
        outer = self

        class Handler(_Handler):
            faults = outer
            upstream = server.endpoint[len("http://") :]

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._http.block_on_close = False
        self.endpoint = f"http://127.0.0.1:{self._http.server_address[1]}"
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def cut(self, *, after: int = 0, times: int = 1, key: str = "", method: str = "GET") -> None:
        """Close the connection after so many bytes of a response's body."""
        self._add(Fault("cut", key, method, times, after))

    def stall(self, *, after: int = 0, seconds: float = 60, times: int = 1, key: str = "", method: str = "GET") -> None:
        """Send nothing more after so many bytes, for so long, then close."""
        self._add(Fault("stall", key, method, times, after, seconds))

    def unavailable(
        self, *, times: int = 1, key: str = "", method: str = "GET", status: int = 503, short: float | None = None
    ) -> None:
        """Answer 503 SlowDown (or another status) instead of asking the server.

        With ``short``, the answer promises more than comes, and the connection is closed after so many seconds.
        """
        kind = "unavailable" if short is None else "unavailable-short"
        self._add(Fault(kind, key, method, times, seconds=short or 0.0, status=status))

    def delay(self, seconds: float, *, times: int = 1_000_000, key: str = "", method: str = "GET") -> None:
        """Wait before each answer."""
        self._add(Fault("delay", key, method, times, seconds=seconds))

    def dribble(self, *, size: int, seconds: float, times: int = 1, key: str = "", method: str = "GET") -> None:
        """Send a body in pieces of ``size`` bytes, with a pause after each."""
        self._add(Fault("dribble", key, method, times, size, seconds))

    def hold(self, *, key: str = "", method: str = "GET") -> threading.Event:
        """Answer one request no sooner than the event is set."""
        fault = Fault("hold", key, method, 1)
        self._add(fault)
        return fault.release

    def corrupt(self, *, at: int, times: int = 1, key: str = "", method: str = "GET") -> None:
        """Change the byte of the response's body at this place."""
        self._add(Fault("corrupt", key, method, times, at))

    def truncate(self, *, to: int, times: int = 1, key: str = "", method: str = "GET") -> None:
        """Answer with a shorter body whose Content-Length says that it is whole."""
        self._add(Fault("truncate", key, method, times, to))

    def clear(self) -> None:
        """No more faults."""
        with self._lock:
            self._faults.clear()

    @property
    def left(self) -> int:
        """How many faults have not come yet."""
        with self._lock:
            return sum(fault.times for fault in self._faults)

    def requests(self, method: str = "GET", key: str = "") -> list[Seen]:
        """What came by."""
        with self._lock:
            return [seen for seen in self.seen if seen.method == method and key in seen.path]

    def wait(self, seconds: float) -> None:
        """Sleep, but not beyond the proxy's end."""
        self._ended.wait(seconds)

    def take(self, method: str, path: str, ranged: str | None) -> Fault | None:
        """The fault of a request, counted."""
        with self._lock:
            for fault in self._faults:
                if fault.times > 0 and fault.method == method and fault.key in urllib.parse.unquote(path):
                    fault.times -= 1
                    self.seen.append(Seen(method, path, ranged, fault.kind))
                    return fault
            self.seen.append(Seen(method, path, ranged, None))
            return None

    def _add(self, fault: Fault) -> None:
        with self._lock:
            self._faults.append(fault)

    def close(self) -> None:
        """End the proxy."""
        self._ended.set()
        for fault in self._faults:
            fault.release.set()
        self._http.shutdown()
        self._http.server_close()


class _Handler(BaseHTTPRequestHandler):
    """One connection of a client's."""

    protocol_version = "HTTP/1.1"
    faults: Faults
    upstream: str

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _serve(self) -> None:
        body = self._request_body()
        fault = self.faults.take(self.command, self.path, self.headers.get("Range"))
        kind = fault.kind if fault is not None else ""
        if fault is not None and kind == "delay":
            self.faults.wait(fault.seconds)
        if fault is not None and kind == "hold":
            fault.release.wait()
        if fault is not None and kind == "unavailable":
            self._answer_error(fault.status)
            return
        if fault is not None and kind == "unavailable-short":
            self._answer_error(fault.status, missing=1000)
            self.faults.wait(fault.seconds)
            self._cut()
            return
        with contextlib.closing(http.client.HTTPConnection(self.upstream, timeout=60)) as connection:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in ("expect", "connection"):
                    connection.putheader(name, value)
            connection.endheaders(body)
            self._pass_on(connection.getresponse(), fault, kind)

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _serve

    def _request_body(self) -> bytes | None:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            raise NotImplementedError("boto3 does not send chunked bodies")
        length = self.headers.get("Content-Length")
        return self.rfile.read(int(length)) if length is not None else None

    def _pass_on(self, response: http.client.HTTPResponse, fault: Fault | None, kind: str) -> None:
        length = response.getheader("Content-Length")
        # Lists come in chunks: they are small enough to be sent whole.
        content = response.read() if length is None and self.command != "HEAD" else None
        size = int(length) if length is not None else len(content or b"")
        if fault is not None and kind == "truncate":
            size = min(size, fault.after)
        self.send_response_only(response.status, response.reason)
        for name, value in response.getheaders():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(size))
        self.end_headers()
        if self.command == "HEAD":
            return
        self._send_body(response, content, size, fault, kind)

    def _send_body(
        self, response: http.client.HTTPResponse, content: bytes | None, size: int, fault: Fault | None, kind: str
    ) -> None:
        sent = 0
        stop = fault.after if fault is not None and kind in ("cut", "stall") else None
        for chunk in _chunks(response, content):
            if fault is not None and kind == "corrupt" and sent <= fault.after < sent + len(chunk):
                changed = bytearray(chunk)
                changed[fault.after - sent] ^= 0xFF
                chunk = bytes(changed)
            end = min(size, stop if stop is not None else size) - sent
            with contextlib.suppress(ConnectionError):
                self._write(chunk[:end], fault if kind == "dribble" else None)
            sent += min(len(chunk), end)
            if stop is not None and sent >= stop:
                break
        if fault is not None and kind in ("cut", "stall"):
            if kind == "stall" and sent < size:
                self.faults.wait(fault.seconds)
            self._cut()
        elif sent < size:
            self._cut()  # the server's own answer was shorter than it said
        elif fault is not None and kind == "truncate":
            self.close_connection = True

    def _write(self, data: bytes, dribble: Fault | None) -> None:
        step = dribble.after if dribble is not None else len(data)
        for begin in range(0, len(data), step or 1):
            self.wfile.write(data[begin : begin + step])
            if dribble is not None:
                self.faults.wait(dribble.seconds)

    def _cut(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def _answer_error(self, status: int, missing: int = 0) -> None:
        code = b"AccessDenied" if status == 403 else b"SlowDown"
        text = b"<?xml version='1.0'?><Error><Code>%s</Code><Message>as the test said</Message></Error>" % code
        self.send_response_only(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(text) + missing if self.command != "HEAD" else 0))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)


def _chunks(response: http.client.HTTPResponse, content: bytes | None) -> Iterator[bytes]:
    if content is not None:
        yield content
        return
    while chunk := response.read1(1 << 18):
        yield chunk


@contextlib.contextmanager
def bucket(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """A bucket of a server of its own, which the environment leads to."""
    from container.agent.s3 import client

    with start(folder / "s3") as server:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        for name, value in server.environment.items():
            patch.setenv(name, value)
        patch.setenv("FLEETFIT_CACHE", str(folder / "cache"))
        client.forget()
        yield Bucket(server, "mine")
        client.forget()


@contextlib.contextmanager
def at(address: str, server: S3Server) -> Iterator[str]:
    """The server at another address of this machine, which others reach; gives its endpoint there."""
    host, _, port = server.endpoint[len("http://") :].partition(":")

    class Relay(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.create_connection((host, int(port))) as behind:
                back = threading.Thread(target=_pass_on, args=(behind, self.request), daemon=True)
                back.start()
                _pass_on(self.request, behind)
                back.join()

    class Relays(socketserver.ThreadingTCPServer):
        daemon_threads = True
        block_on_close = False

    with Relays((address, 0), Relay) as relays:
        threading.Thread(target=relays.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield f"http://{address}:{relays.server_address[1]}"
        relays.shutdown()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def start(folder: Path) -> S3Server:
    """A server of a folder of small files."""
    return S3Server(folder)
