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

#: The maximum number of open connections, and of threads that answer requests. Further requests get the HTTP status
#: 503.
CONNECTION_LIMIT = 1024
#: The maximum time until the headers of a request are complete, in seconds. For the first request, the time begins when
#: the connection is opened. For a later request, it begins with the request's first byte.
HEADER_SECONDS = 15.0
#: A connection is closed if no further request arrives within this time after a response, in seconds.
IDLE_SECONDS = 65
#: A connection is closed if its client receives nothing of a response for this time, in seconds. The time is long
#: because a job may stop reading data while it evaluates.
STALL_SECONDS = 600
#: The maximum size of the headers, in bytes.
HEADER_LIMIT = 64 << 10


def listen(port: int, option: str = "--port") -> socket.socket:
    """Return a socket that listens on a port of loopback.

    Args:
        port: The port number. If 0, a free port is chosen.
        option: The command line option that sets the port, for the error message.

    Raises:
        BackendError: the port is not available.
    """
    try:
        listener = socket.create_server((HOST, port), backlog=128)
    except OSError as error:
        why = os.strerror(error.errno or 0)  # create_server() adds the address to error.strerror
        raise BackendError(
            f"port {port} of {HOST} is not available: {why}. Choose another port with {option}."
        ) from error
    # All accepted connections inherit these options. Without TCP_NODELAY, a response's body would wait 40 ms for the
    # acknowledgement of the headers.
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
    """Return whether a log record of uvicorn reports a fault.

    Two errors are no faults. When the server stops, unfinished responses are cancelled. If a file changes its size
    while it is sent, the connection is closed, which shows the client that the response is incomplete.
    """
    error = record.exc_info[1] if record.exc_info else None
    resized = isinstance(error, h11.LocalProtocolError) and "declared Content-Length" in str(error)
    return not (resized or isinstance(error, asyncio.CancelledError))


class _Connection(H11Protocol):
    """A connection with a time limit for the headers of requests.

    When the server stops, the connection is closed if its request was not received completely.

    Args:
        header_s: As for :class:`Server`.
        more: The arguments of uvicorn's protocol.
    """

    def __init__(self, header_s: float, **more: Any) -> None:
        super().__init__(**more)
        self._header_s = header_s
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time limit for the headers of the first request."""
        super().connection_made(transport)
        self._limit_headers()

    def data_received(self, data: bytes) -> None:
        """Process received data, and start or end the time limit for headers."""
        super().data_received(data)
        self._limit_headers()

    def _limit_headers(self) -> None:
        """Start the time limit for the headers of the next request. While a response is sent, cancel the time limit.

        If a request was answered before its body was received completely, the time limit also covers the rest of the
        body.
        """
        if self.cycle and not self.cycle.response_complete:
            if self._timer:
                self._timer.cancel()
                self._timer = None
        elif not self._timer:
            self._timer = self.loop.call_later(self._header_s, self.transport.abort)

    def shutdown(self) -> None:
        """Finish the response if the request was received completely. Otherwise, close the connection at once."""
        super().shutdown()
        if self.cycle and self.cycle.more_body:
            self.transport.close()


class Server:
    """An HTTP server that runs an ASGI application in a thread.

    The object is a context manager, which starts and stops the server.

    Args:
        application: The application. It can use up to :data:`CONNECTION_LIMIT` threads at the same time.
        listener: The socket, from :func:`listen`.
        grace_s: The maximum time in which completely received requests are answered when the server stops, in seconds.
        header_s: The maximum time until the headers of a request are complete, in seconds.
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
        """Stop accepting requests, and wait until the completely received requests are answered."""
        self._server.should_exit = True
        self._thread.join()

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
