"""HTTP for S3: content of any length, files sent by the kernel; connections are those of the endpoint's server."""

from __future__ import annotations

import contextlib
import datetime
import email.errors
import errno
import socket
import sys
import time
import traceback
import uuid
from collections.abc import Mapping
from pathlib import Path

from container.system import processes
from estimators.service.errors import ServiceError
from estimators.service.s3 import documents, requests, signatures
from estimators.service.s3.bodies import Incoming
from estimators.service.s3.operations import Operations
from estimators.service.s3.requests import Reply, Request
from estimators.service.settings import Keys
from estimators.service.web import BoundedServer, Connection

#: A client with a key may pause so long in what it sends or takes, in seconds: a training may be evaluating.
_PATIENCE = 600.0
#: How long what a client of a refused request still sends is read, so that it sees the answer, in seconds.
_LINGER = 5.0
#: What is left of a small request is read, and the connection stays.
_SMALL = 1 << 20

#: What Python's reader says of headers of content that is multipart, which it is not given.
_HARMLESS = (
    email.errors.NoBoundaryInMultipartDefect,
    email.errors.StartBoundaryNotFoundDefect,
    email.errors.MultipartInvariantViolationDefect,
)

#: What the client is told where a file cannot be read or written.
_FAULTS = {
    errno.ENOSPC: ("InsufficientStorage", 507),
    errno.EDQUOT: ("InsufficientStorage", 507),
    errno.EACCES: ("AccessDenied", 403),
    errno.EPERM: ("AccessDenied", 403),
    errno.EROFS: ("AccessDenied", 403),
}


class Server(BoundedServer):
    """S3 on loopback.

    Args:
        port: Its port; 0 chooses a free one.
        folder: The folder of the buckets.
        keys: What requests have to be signed with.

    Raises:
        OSError: the port is taken, or the folder cannot be read.
    """

    connection_limit = 1024

    def __init__(self, port: int, folder: Path, keys: Keys) -> None:
        self.operations = Operations(folder)
        self.keys = keys
        self.operations.sweep()
        super().__init__(("127.0.0.1", port), _Handler)

    @property
    def endpoint(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_address[1]}"


def opened(port: int, folder: Path, keys: Keys) -> Server | None:
    """Make the server of a process of its own, whose every connection may have a file open; say why if it cannot be."""
    processes.allow_open_files(4 * Server.connection_limit)
    try:
        return Server(port, folder, keys)
    except OSError as error:
        print(f"{error.filename or f'port {port}'}: {error.strerror}", file=sys.stderr)
        return None


class _Handler(Connection):
    server_version = "fleetfit-s3"
    wbufsize = 1 << 16
    server: Server

    def _any(self) -> None:
        self._incoming.headers_end()
        headers: dict[str, str] = {}
        for name, value in self.headers.items():
            headers[name.lower()] = f"{headers[name.lower()]},{value}" if name.lower() in headers else value
        body: Incoming | None = None
        try:
            if any(not isinstance(defect, _HARMLESS) for defect in self.headers.defects):
                raise ServiceError("InvalidRequest", "A header cannot be read.")
            body = Incoming(self.rfile, headers, self._ask_for_content)
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
            read = body is not None and body.drain(_SMALL)
            if not read:
                self.close_connection = True
            self._send(reply)
        finally:
            if reply.file is not None:
                reply.file.close()
        if not read:
            self._let_it_see()

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = _any

    def _respond(self, headers: Mapping[str, str], body: Incoming) -> Reply:
        path, _, query = self.path.partition("?")
        now = datetime.datetime.now(tz=datetime.timezone.utc)
        signed = signatures.verify(self.command, path, query, headers, self.server.keys, now)
        self.server.admit(self.connection)
        self._incoming.go_on(_PATIENCE)
        body.begin(signed.digest)
        bucket, key = requests.split(path)
        given = requests.parameters(query)
        return self.server.operations.respond(
            Request(self.command, bucket, key, given, signed.headers, body, signed.digest, signed.region)
        )

    def _error(self, error: ServiceError) -> Reply:
        node: documents.Node = ("Error", [("Code", error.code), ("Message", error.message), ("Resource", self.path)])
        return Reply(error.status, {"content-type": "application/xml"}, documents.write(node, namespace=False))

    def _send(self, reply: Reply) -> None:
        self.connection.settimeout(_PATIENCE)
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

    def _let_it_see(self) -> None:
        """Take for a while what the client still sends: else the connection's end may reach it before the answer."""
        until = time.monotonic() + _LINGER
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            while (left := until - time.monotonic()) > 0:
                self.connection.settimeout(left)
                if not self.connection.recv(1 << 20):
                    break

    def handle_expect_100(self) -> bool:
        """Ask for the content when it is wanted: a request that is refused needs none."""
        return True

    def _ask_for_content(self) -> None:
        if self.headers.get("Expect", "").lower() == "100-continue":
            self.send_response_only(100)
            self.end_headers()
            self.wfile.flush()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a request line or headers that http.server cannot read, or a method that is none."""
        self.close_connection = True
        self.command = self.command or ""
        self._send(Reply(int(code), {"content-type": "text/plain"}, b"the request cannot be read."))
