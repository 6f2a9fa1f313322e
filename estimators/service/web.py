"""Serve an ASGI application on the loopback interface with uvicorn.

The endpoint, the S3 server and the pages of ``fleetfit ui`` are such applications.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import socket
import threading
from types import TracebackType
from typing import Any

import anyio
import anyio.to_thread
import h11
import uvicorn
from starlette.requests import Request
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from container.system import processes
from estimators.job.errors import BackendError

HOST = "127.0.0.1"

#: The maximum number of open connections, and of threads that answer requests. More requests get the status 503.
CONNECTION_LIMIT = 1024
#: The time from a connection, or from the first byte of a later request, until the headers are complete, in seconds.
HEADER_SECONDS = 15.0
#: After an answer, a connection without another request for this time is closed, in seconds.
IDLE_SECONDS = 65
#: A connection whose client takes nothing of an answer for this time is closed, in seconds. A job that reads data may
#: evaluate for long.
STALL_SECONDS = 600
#: The maximum size of the headers, in bytes.
HEADER_LIMIT = 64 << 10


def listen(port: int, option: str = "--port") -> socket.socket:
    """Return a socket that listens on a port of loopback.

    Args:
        port: The port; 0 chooses a free one.
        option: The option of the command line that chooses the port, for the error.

    Raises:
        BackendError: the port is taken.
    """
    try:
        listener = socket.create_server((HOST, port), backlog=128)
    except OSError as error:
        why = os.strerror(error.errno or 0)  # create_server() adds the address to error.strerror
        raise BackendError(
            f"port {port} of {HOST} is not available: {why}. Choose another port with {option}."
        ) from error
    # Set for all accepted connections. Otherwise, an answer's content waits 40 ms for the acknowledgement of the
    # headers.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * STALL_SECONDS)
    return listener


async def read_body(request: Request, limit: int) -> bytes | None:
    """Return a request's body. Return None if the body has more bytes than the limit."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > limit:
            return None
    return bytes(body)


def _is_fault(record: logging.LogRecord) -> bool:
    """Return whether a record of uvicorn is about a fault, and not about an expected end of an answer.

    At the server's end, unfinished answers are cancelled. A file can change its size while the file is sent; the
    connection then ends, which tells the client.
    """
    error = record.exc_info[1] if record.exc_info else None
    resized = isinstance(error, h11.LocalProtocolError) and "declared Content-Length" in str(error)
    return not (resized or isinstance(error, asyncio.CancelledError))


class _Connection(H11Protocol):
    """Limit the time for headers, and close the connection at the server's end if its request has not come whole.

    Args:
        header_s: As for :class:`Server`.
        more: The arguments of uvicorn's protocol.
    """

    def __init__(self, header_s: float, **more: Any) -> None:
        super().__init__(**more)
        self._header_s = header_s
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for headers."""
        super().connection_made(transport)
        self._limit_headers()

    def data_received(self, data: bytes) -> None:
        """Take what has come."""
        super().data_received(data)
        self._limit_headers()

    def _limit_headers(self) -> None:
        """Start the time for headers, also while the rest of an answered request comes; no limit during an answer."""
        if self.cycle and not self.cycle.response_complete:
            if self._timer:
                self._timer.cancel()
                self._timer = None
        elif not self._timer:
            self._timer = self.loop.call_later(self._header_s, self.transport.abort)

    def shutdown(self) -> None:
        """Finish the answer to a whole request; close every other connection at once."""
        super().shutdown()
        if self.cycle and self.cycle.more_body:
            self.transport.close()


class Server:
    """Serve an application in a thread; a context manager that begins and ends it.

    Args:
        application: The application. What it runs in threads has as many of them as connections.
        listener: The socket, from :func:`listen`.
        grace_s: How long the server may take at its end to answer the requests that have come whole, in seconds.
        header_s: How long the headers of a request may take to come, in seconds.
    """

    def __init__(
        self, application: ASGIApp, listener: socket.socket, grace_s: int, header_s: float = HEADER_SECONDS
    ) -> None:
        self._listener = listener
        logging.getLogger("uvicorn.error").addFilter(_is_fault)
        self._server = uvicorn.Server(
            uvicorn.Config(
                application,
                loop="asyncio",
                http=functools.partial(_Connection, header_s),  # type: ignore[arg-type] # uvicorn only calls it
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="error",
                access_log=False,  # requests contain private names
                server_header=False,
                proxy_headers=False,
                limit_concurrency=CONNECTION_LIMIT,
                timeout_keep_alive=IDLE_SECONDS,
                timeout_graceful_shutdown=grace_s,
                h11_max_incomplete_event_size=HEADER_LIMIT,
            )
        )
        self._thread = threading.Thread(target=anyio.run, args=(self._serve,), name="http", daemon=True)

    async def _serve(self) -> None:
        anyio.to_thread.current_default_thread_limiter().total_tokens = CONNECTION_LIMIT
        await self._server.serve([self._listener])

    def start(self) -> None:
        """Start to serve requests."""
        processes.allow_open_files(4 * CONNECTION_LIMIT)  # each connection may have a file open
        self._thread.start()

    def close(self) -> None:
        """Stop accepting requests, and return when the requests that have come whole are answered."""
        self._server.should_exit = True
        self._thread.join()

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
