"""HTTP: connections that stay open, requests with bounds in size and time, one thread for each connection.

A connection is a stranger's until a request on it was signed with a key of ours. Strangers have places of their own,
and the one that came first goes where a new one needs its place: whoever opens many connections, and sends half a
request on each or nothing, takes no place from those who have a key. Of these, connections that wait for their next
request are closed where another needs their place.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import socket
import sys
import threading
import time
import traceback
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
#: A stranger's first byte, and anybody's headers from their first byte on, have to come within so many seconds.
HEADER_SECONDS = 15.0
#: From its first byte to its last a request may take so long, and so may its answer, in seconds.
REQUEST_SECONDS = 30.0
#: The longest headers, in bytes, and what the connection reads with them.
HEADER_LIMIT = 256 << 10
#: Strangers' connections: for another one the first of them is closed.
STRANGER_LIMIT = 128
#: How long a new connection waits for the threads of closed ones to end, in seconds.
_ROOM_SECONDS = 5.0

#: method, target, headers, body, what to call when the request is seen to be signed -> answer.
Respond = Callable[[str, str, Headers, bytes, Callable[[], None]], Answer]


@dataclasses.dataclass
class _Place:
    """An open connection's state.

    Attributes:
        stranger: Whether no request on it was signed yet.
        idle: Whether it waits for a request.
        answering: Whether a request on it is being answered.
        closed: Whether it was closed to make room; its thread will see that.
    """

    stranger: bool = True
    idle: bool = False
    answering: bool = False
    closed: bool = False


class BoundedServer(ThreadingHTTPServer):
    """Serves on loopback, a limited number of connections at once.

    Args:
        address: Host and port; port 0 chooses a free one.
        handler: Answers the requests of a connection.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    #: Connections of those who have shown a key: more at once are turned away.
    connection_limit = 256

    def __init__(self, address: tuple[str, int], handler: type[Connection]) -> None:
        #: Guards the places, and tells when one is free.
        self._changed = threading.Condition()
        #: The open connections; strangers in the order in which they came, others in that of their last request.
        self._places: dict[socket.socket, _Place] = {}
        self._ending = False
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._enter(request):
            with contextlib.suppress(OSError):
                request.sendall(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started, which would have released it
            self._leave(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._leave(request)

    def _enter(self, connection: socket.socket) -> bool:
        with self._changed:
            strangers = [one for one, place in self._places.items() if place.stranger and not place.closed]
            known = [place for place in self._places.values() if not place.stranger and not place.closed]
            if len(strangers) >= STRANGER_LIMIT:
                self._close(strangers[0])
            if len(known) >= self.connection_limit and not self._close_idle():
                return False
            # Closed ones count until their threads have ended, which a flood may be quicker than.
            most = 2 * (self.connection_limit + STRANGER_LIMIT)
            if not self._changed.wait_for(lambda: len(self._places) < most, _ROOM_SECONDS):
                return False
            self._places[connection] = _Place()
            return True

    def close(self) -> None:
        """Take no more requests, and return when those that have come are answered."""
        self.shutdown()
        self.server_close()
        with self._changed:
            self._ending = True
            for connection, place in self._places.items():
                if not place.answering:
                    self._close(connection)
            self._changed.wait_for(lambda: not self._places, REQUEST_SECONDS)

    def _leave(self, connection: socket.socket) -> None:
        with self._changed:
            self._places.pop(connection, None)
            self._changed.notify_all()

    def _close_idle(self) -> bool:
        """Close the client's connection that has waited longest; return False if none waits."""
        for connection, place in self._places.items():
            if place.idle and not place.stranger and not place.closed:
                self._close(connection)
                return True
        return False

    def _close(self, connection: socket.socket) -> None:
        self._places[connection].closed = True
        with contextlib.suppress(OSError):  # its client was quicker
            connection.shutdown(socket.SHUT_RDWR)

    def wait_for_request(self, connection: socket.socket) -> float:
        """Note that a connection waits for a request; return for how many seconds it may."""
        with self._changed:
            place = self._places[connection]
            place.idle = True
            if place.stranger:
                return HEADER_SECONDS
            self._places[connection] = self._places.pop(connection)  # it has waited for the shortest time
            return IDLE_SECONDS

    def begin_request(self, connection: socket.socket) -> bool:
        """Note that its next request begins; return False if it has just been closed instead."""
        with self._changed:
            place = self._places[connection]
            place.idle = False
            return not place.closed

    def begin_answer(self, connection: socket.socket) -> bool:
        """Note that a request is being answered, which the server's end waits for; return False if it is too late."""
        with self._changed:
            place = self._places[connection]
            place.answering = not place.closed
            return place.answering

    def end_answer(self, connection: socket.socket) -> bool:
        """Note that it was; return whether the connection must be closed, since the server ends."""
        with self._changed:
            self._places[connection].answering = False
            return self._ending

    def admit(self, connection: socket.socket) -> None:
        """Note that a request on it was signed with the endpoint's keys: it is no longer a stranger's."""
        with self._changed:
            self._places[connection].stranger = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a connection that broke off: nobody can do anything about it. Else it is a fault of ours."""
        if not isinstance(sys.exc_info()[1], OSError):
            traceback.print_exc(file=sys.stderr)


class _Incoming(io.RawIOBase):
    """What a connection sends, with limits for each request as a whole and for its headers.

    Args:
        server: Told when the connection waits.
        connection: The connection.
    """

    def __init__(self, server: BoundedServer, connection: socket.socket) -> None:
        self._server = server
        self._connection = connection
        self._until = 0.0
        self._begun = 0.0
        self._idle = False
        self._headers: int | None = 0
        self._patience: float | None = None

    def next_request(self) -> None:
        """Expect another request."""
        self._idle = True
        self._headers, self._patience = 0, None

    def headers_end(self) -> None:
        """Note that the headers have come; the body follows."""
        self._until = self._begun + REQUEST_SECONDS
        self._headers = None

    def go_on(self, seconds: float) -> None:
        """Let the body take as long as it needs, while something of it comes every so many seconds."""
        self._patience = seconds

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
        self._until = time.monotonic() + self._server.wait_for_request(self._connection)
        try:
            count = self._receive(buffer)
        finally:
            mine = self._server.begin_request(self._connection)
        self._begun = time.monotonic()
        self._until = self._begun + min(HEADER_SECONDS, REQUEST_SECONDS)
        return count if mine else 0

    def _receive(self, buffer: Any) -> int:
        left = self._patience or self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError("the request takes too long")
        self._connection.settimeout(left)
        count = self._connection.recv_into(buffer)
        if self._headers is not None:
            self._headers += count
            if self._headers > HEADER_LIMIT:
                raise TimeoutError("the headers are too long")
        return count


class Server(BoundedServer):
    """Answers requests that are read as a whole before.

    Args:
        address: Host and port; port 0 chooses a free one.
        respond: Makes the answer to a request; it may be called by several threads at once, and raises nothing.
    """

    def __init__(self, address: tuple[str, int], respond: Respond) -> None:
        self.respond = respond
        super().__init__(address, _Handler)


class Connection(BaseHTTPRequestHandler):
    """A connection of a bounded server's, whose requests come within its times."""

    protocol_version = "HTTP/1.1"
    server_version = "fleetfit"
    sys_version = ""
    disable_nagle_algorithm = True
    server: BoundedServer

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._incoming = _Incoming(self.server, self.connection)
        self.rfile.close()
        self.rfile = io.BufferedReader(self._incoming)

    def handle_one_request(self) -> None:
        self._incoming.next_request()
        super().handle_one_request()  # which closes the connection after a TimeoutError

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: requests hold names that are private."""


class _Handler(Connection):
    server: Server

    def _any(self) -> None:
        self._incoming.headers_end()
        if self.headers.defects:
            # A name with a space behind it, or a line without a colon: what follows is read as no header at all, and
            # may have said how long the body is.
            self._refuse(400, b"a header cannot be read.")
            return
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
        admit = functools.partial(self.server.admit, self.connection)
        if self.server.begin_answer(self.connection):
            self._send(self.server.respond(self.command, self.path, self.headers.items(), body, admit))
            self.close_connection |= self.server.end_answer(self.connection)

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
        """Answer a request line or headers that http.server cannot read."""
        self.close_connection = True
        self.command = self.command or ""
        self._send(Answer(int(code), "text/plain", b"the request cannot be read."))


def _is_length(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 12
