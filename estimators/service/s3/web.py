"""HTTP for S3: a thread for each connection, content of any length, files sent by the kernel."""

from __future__ import annotations

import contextlib
import datetime
import errno
import socket
import sys
import traceback
import uuid
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from estimators.service.errors import ServiceError
from estimators.service.s3 import documents, requests, signatures
from estimators.service.s3.bodies import Incoming
from estimators.service.s3.operations import Operations
from estimators.service.s3.requests import Reply, Request
from estimators.service.settings import Keys

#: A connection on which nothing moves for so long is closed, in seconds.
_IDLE_SECONDS = 65.0
#: How much of a refused request's content is read so that its client sees the answer, in bytes.
_DRAIN_LIMIT = 64 << 20

#: What the client is told where a file cannot be read or written.
_FAULTS = {
    errno.ENOSPC: ("InsufficientStorage", 507),
    errno.EDQUOT: ("InsufficientStorage", 507),
    errno.EACCES: ("AccessDenied", 403),
    errno.EPERM: ("AccessDenied", 403),
    errno.EROFS: ("AccessDenied", 403),
}


class Server(ThreadingHTTPServer):
    """S3 on loopback.

    Args:
        port: Its port; 0 chooses a free one.
        folder: The folder of the buckets.
        keys: What requests have to be signed with.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, port: int, folder: Path, keys: Keys) -> None:
        self.operations = Operations(folder)
        self.operations.sweep()
        self.keys = keys
        super().__init__(("127.0.0.1", port), _Handler)

    @property
    def endpoint(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a connection that broke off: nobody can do anything about it."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "fleetfit-s3"
    sys_version = ""
    disable_nagle_algorithm = True
    timeout = _IDLE_SECONDS
    wbufsize = 1 << 16
    server: Server

    def _any(self) -> None:
        headers: dict[str, str] = {}
        for name, value in self.headers.items():
            headers[name.lower()] = f"{headers[name.lower()]},{value}" if name.lower() in headers else value
        body: Incoming | None = None
        try:
            aws_chunks = headers.get("x-amz-content-sha256", "").startswith("STREAMING-")
            body = Incoming(self.rfile, headers, aws_chunks)
            reply = self._respond(headers, body)
        except ServiceError as error:
            reply = self._error(error)
        except (ConnectionError, TimeoutError):
            raise
        except OSError as error:
            code, status = _FAULTS.get(error.errno or 0, ("InternalError", 500))
            name = error.filename if isinstance(error.filename, str) else "the object's file"
            reply = self._error(ServiceError(code, f"{name}: {error.strerror or error}", status))
        except Exception as error:  # noqa: BLE001 - the client gets an answer, and the log what was wrong
            traceback.print_exc(file=sys.stderr)
            reply = self._error(ServiceError("InternalError", f"{type(error).__name__}: {error}", 500))
        try:
            if body is None or not self._is_read(body):
                self.close_connection = True
            self._send(reply)
        finally:
            if reply.file is not None:
                reply.file.close()

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = _any

    def _respond(self, headers: Mapping[str, str], body: Incoming) -> Reply:
        path, _, query = self.path.partition("?")
        now = datetime.datetime.now(tz=datetime.timezone.utc)
        digest, region = signatures.verify(self.command, path, query, headers, self.server.keys, now)
        bucket, key = requests.split(path)
        parameters = requests.parameters(query)
        return self.server.operations.respond(
            Request(self.command, bucket, key, parameters, headers, body, digest, region)
        )

    def _is_read(self, body: Incoming) -> bool:
        try:
            return body.drain(_DRAIN_LIMIT)
        except ServiceError:
            return False

    def _error(self, error: ServiceError) -> Reply:
        node: documents.Node = ("Error", [("Code", error.code), ("Message", error.message), ("Resource", self.path)])
        return Reply(error.status, {"content-type": "application/xml"}, documents.write(node, namespace=False))

    def _send(self, reply: Reply) -> None:
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value.replace("\r", " ").replace("\n", " "))
        self.send_header("x-amz-request-id", uuid.uuid4().hex[:16].upper())
        if reply.status not in (204, 304):
            self.send_header("Content-Length", str(reply.count if reply.file is not None else len(reply.content)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD" and reply.status not in (204, 304):
            if reply.file is None:
                self.wfile.write(reply.content)
            elif reply.count:
                self.wfile.flush()
                sent = self.connection.sendfile(reply.file, reply.start, reply.count)
                if sent < reply.count:  # the file became shorter meanwhile: the client must not take it for whole
                    self.close_connection = True
        self.wfile.flush()

    def handle_expect_100(self) -> bool:
        """Ask for the content at once: clients wait a second for that before they send it unasked."""
        going_on = super().handle_expect_100()
        self.wfile.flush()
        return going_on

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a request line or headers that http.server cannot read, or a method that is none."""
        self.close_connection = True
        self.command = self.command or ""
        self._send(Reply(int(code), {"content-type": "text/plain"}, b"the request cannot be read."))

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: requests hold names that are private."""

    def finish(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
        super().finish()
