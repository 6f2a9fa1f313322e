"""Serve S3 as an ASGI application. A thread answers each request, and reads the request's content while it arrives."""

from __future__ import annotations

import contextlib
import datetime
import errno
import inspect
import os
import re
import sys
import traceback
import uuid
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import anyio
import anyio.from_thread
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from estimators.job.errors import BackendError
from estimators.service import web
from estimators.service.errors import ServiceError
from estimators.service.s3 import bodies, documents, objects, requests, signatures
from estimators.service.s3.operations import Operations
from estimators.service.s3.requests import Reply, Request
from estimators.service.settings import Keys

#: The maximum time in which a client sends no data of a request's content, in seconds.
_PATIENCE = 600.0
#: When the server stops, requests that were received completely are answered within this number of seconds.
_GRACE_S = 1

#: The characters that a header must not contain.
_NOT_HEADER = re.compile("[\0\n-\r]")

#: S3's error code and the HTTP status for each error of reading or writing a file.
_FAULTS = {
    errno.ENOSPC: ("InsufficientStorage", 507),
    errno.EDQUOT: ("InsufficientStorage", 507),
    errno.EACCES: ("AccessDenied", 403),
    errno.EPERM: ("AccessDenied", 403),
    errno.EROFS: ("AccessDenied", 403),
}


@contextlib.contextmanager
def serving(port: int, folder: Path, keys: Keys, option: str = "--port") -> Iterator[str]:
    """Serve S3 on the loopback interface during a ``with`` block.

    Args:
        port: The port number. If 0, a free port is chosen.
        folder: The folder of the buckets.
        keys: The keys that requests must be signed with.
        option: The command line option that sets the port, for the error message.

    Yields:
        The URL of the server.

    Raises:
        BackendError: the port is not available, or the folder cannot be read.
    """
    listener = web.listen(port, option)
    with listener:
        operations = Operations(folder)
        try:
            operations.sweep()
        except OSError as error:
            raise BackendError(f"{error.filename}: {error.strerror}") from error
        with web.Server(Application(operations, keys), listener, _GRACE_S):
            yield f"http://{web.HOST}:{listener.getsockname()[1]}"


class Application:
    """An ASGI application that answers S3 requests.

    Args:
        operations: The operations that requests call.
        keys: The keys that requests must be signed with.
    """

    def __init__(self, operations: Operations, keys: Keys) -> None:
        self._operations = operations
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        headers: dict[str, str] = {}
        for name, value in Headers(scope=scope).items():
            headers[name] = f"{headers[name]},{value}" if name in headers else value
        content = _content(receive)
        reply = await run_in_threadpool(self._reply, scope, headers, content)
        shown = {name: _NOT_HEADER.sub(" ", value).strip() for name, value in reply.headers.items()}
        shown["x-amz-request-id"] = uuid.uuid4().hex[:16].upper()
        if "expect" in headers and inspect.getgeneratorstate(content) == inspect.GEN_CREATED:
            shown["connection"] = "close"  # the client was not asked to send the content, and may or may not send it
        with reply.file or contextlib.nullcontext():
            await _response(reply, scope["method"], shown)(scope, receive, send)

    def _reply(self, scope: Scope, headers: Mapping[str, str], content: Iterator[bytes]) -> Reply:
        path, query = scope["raw_path"].decode("ascii"), scope["query_string"].decode("ascii")
        try:
            now = datetime.datetime.now(tz=datetime.timezone.utc)
            signed = signatures.verify(scope["method"], path, query, headers, self._keys, now)
            body = bodies.stream(content, in_chunks=signed.digest.startswith("STREAMING-"))
            bucket, key = requests.split(path)
            given = requests.parameters(query)
            return self._operations.respond(
                Request(scope["method"], bucket, key, given, signed.headers, body, signed.digest, signed.region)
            )
        except ServiceError as error:
            failed = error
        except OSError as error:
            code, status = _FAULTS.get(error.errno or 0, ("InternalError", 500))
            name = error.filename if isinstance(error.filename, str) else "the object's file"
            failed = ServiceError(code, f"{name}: {error.strerror or error}", status)
        except Exception as error:  # noqa: BLE001 - the client gets a response, and the log the traceback
            traceback.print_exc(file=sys.stderr)
            failed = ServiceError("InternalError", f"{type(error).__name__}: {error}", 500)
        node: documents.Node = ("Error", [("Code", failed.code), ("Message", failed.message), ("Resource", path)])
        return Reply(failed.status, {"content-type": "application/xml"}, documents.write(node, namespace=""))


def _content(receive: Receive) -> Generator[bytes, None, None]:
    """Yield a request's content while it arrives. The thread that answers the request calls this function.

    Raises:
        ServiceError: the client has disconnected, or has sent nothing for too long.
    """
    more = True
    while more:
        try:
            message = anyio.from_thread.run(_received, receive)
        except TimeoutError:
            raise ServiceError("RequestTimeout", f"Nothing was received for {_PATIENCE:.0f} s.") from None
        if message["type"] == "http.disconnect":
            raise ServiceError("IncompleteBody", "The connection ended before the content did.")
        more = message.get("more_body", False)
        yield message.get("body", b"")


async def _received(receive: Receive) -> Message:
    with anyio.fail_after(_PATIENCE):
        return await receive()


def _response(reply: Reply, method: str, headers: dict[str, str]) -> Response:
    if reply.file is None:
        return Response(reply.content, reply.status, headers)
    headers["content-length"] = str(reply.count)
    if method == "HEAD":
        return Response(None, reply.status, headers)
    return StreamingResponse(_part(reply.file, reply.start, reply.count), reply.status, headers)


def _part(file: BinaryIO, start: int, count: int) -> Iterator[bytes]:
    """Yield a part of a file.

    If the file has become shorter, the response ends before the length in its headers is reached.
    """
    while count and (piece := os.pread(file.fileno(), min(count, objects.CHUNK), start)):
        yield piece
        start += len(piece)
        count -= len(piece)
