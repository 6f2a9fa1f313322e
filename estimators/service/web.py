"""HTTP: connections that stay open, requests with bounds in size and time, one thread for each connection.

Connections that wait for their next request are closed where a new one needs their place, so that clients that keep
many open, or somebody who holds some for nothing, keep nobody else out for longer than one request may take.
"""

from __future__ import annotations

import contextlib
import io
import socket
import threading
import time
import uuid
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from estimators.service.protocol import Answer
from estimators.service.signing import Headers

#: The largest body, in bytes. A CreateTrainingJob with every member at its largest is some 700 kB.
BODY_LIMIT = 2 << 20
#: A connection without a request for so long is closed, in seconds.
IDLE_SECONDS = 65.0
#: From its first byte to its last a request may take so long, and so may its answer, in seconds.
REQUEST_SECONDS = 30.0
#: More connections at once are turned away.
CONNECTION_LIMIT = 256

#: method, target, headers, body -> answer.
Respond = Callable[[str, str, Headers, bytes], Answer]


class Server(ThreadingHTTPServer):
    """Serves on loopback.

    Args:
        address: Host and port; port 0 chooses a free one.
        respond: Makes the answer to a request; it may be called by several threads at once, and raises nothing.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], respond: Respond) -> None:
        self.respond = respond
        self._lock = threading.Lock()
        self._open = 0
        #: Connections that wait for a request, the one that has waited longest first.
        self._idle: dict[socket.socket, bool] = {}
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._enter():
            with contextlib.suppress(OSError):
                request.sendall(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started, which would have released it
            self._leave()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._leave()

    def _enter(self) -> bool:
        with self._lock:
            if self._open >= CONNECTION_LIMIT:
                # Those that are closed count until their threads have ended, which a flood may be quicker than.
                if not self._idle or self._open >= 2 * CONNECTION_LIMIT:
                    return False
                oldest = next(iter(self._idle))
                del self._idle[oldest]
                with contextlib.suppress(OSError):  # its client was quicker
                    oldest.shutdown(socket.SHUT_RDWR)
            self._open += 1
            return True

    def _leave(self) -> None:
        with self._lock:
            self._open -= 1

    def wait_for_request(self, connection: socket.socket) -> None:
        """The connection may be closed from now on."""
        with self._lock:
            self._idle[connection] = True

    def begin_request(self, connection: socket.socket) -> bool:
        """Its next request begins, or its end; returns False if it has just been closed instead."""
        with self._lock:
            return self._idle.pop(connection, False)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that broke off: nothing that anybody could do something about."""


class _Incoming(io.RawIOBase):
    """What a connection sends, with a time limit for each request as a whole.

    Args:
        server: Told when the connection waits.
        connection: The connection.
    """

    def __init__(self, server: Server, connection: socket.socket) -> None:
        self._server = server
        self._connection = connection
        self._until = 0.0
        self._idle = False

    def next_request(self) -> None:
        """What comes next is another request."""
        self._until = time.monotonic() + IDLE_SECONDS
        self._idle = True

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Read what there is.

        Raises:
            TimeoutError: nothing came in time.
        """
        if not self._idle:
            return self._receive(buffer)
        self._idle = False
        self._server.wait_for_request(self._connection)
        try:
            count = self._receive(buffer)
        finally:
            mine = self._server.begin_request(self._connection)
        self._until = time.monotonic() + REQUEST_SECONDS
        return count if mine else 0

    def _receive(self, buffer: Any) -> int:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError("the request takes too long")
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "fleetfit"
    sys_version = ""
    disable_nagle_algorithm = True
    server: Server

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._incoming = _Incoming(self.server, self.connection)
        self.rfile.close()
        self.rfile = io.BufferedReader(self._incoming)

    def handle_one_request(self) -> None:
        self._incoming.next_request()
        super().handle_one_request()  # which closes the connection after a TimeoutError

    def _any(self) -> None:
        lengths = self.headers.get_all("Content-Length") or ["0"]
        if self.headers.get("Transfer-Encoding") or len(lengths) != 1 or not _is_length(lengths[0]):
            self._refuse(411, b"a Content-Length is needed.")
            return
        length = int(lengths[0])
        if length > BODY_LIMIT:
            self._refuse(413, b"the body is too large.")
            return
        body = self.rfile.read(length)
        if len(body) < length:
            self.close_connection = True
            return
        self._send(self.server.respond(self.command, self.path, self.headers.items(), body))

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = do_OPTIONS = do_PATCH = _any

    def _refuse(self, status: int, why: bytes) -> None:
        self.close_connection = True
        self._send(Answer(status, "text/plain", why))

    def _send(self, answer: Answer) -> None:
        reason = self.responses[answer.status][0] if answer.status in self.responses else ""
        lines = [
            f"HTTP/1.1 {answer.status} {reason}",
            f"x-amzn-RequestId: {uuid.uuid4()}",
            f"Content-Type: {answer.content_type}",
            f"Content-Length: {len(answer.body)}",
            *(f"{name}: {value}" for name, value in answer.headers.items()),
        ]
        if self.close_connection:
            lines.append("Connection: close")
        head = "\r\n".join(lines).encode("latin-1", "replace") + b"\r\n\r\n"
        self.connection.settimeout(REQUEST_SECONDS)  # of all that follows, however slowly it is taken
        # In one piece: two would wait for each other's acknowledgement.
        self.wfile.write(head if self.command == "HEAD" else head + answer.body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What http.server itself refuses: a request line or headers that it cannot read."""
        self.close_connection = True
        self.command = self.command or ""
        self._send(Answer(int(code), "text/plain", b"the request cannot be read."))

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: requests hold names that are nobody's business."""


def _is_length(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 12
