"""The supervisor's two ears: the record's control socket, and the socket to a caller that waits.

Both take JSON objects, one a line, and answer each with one. The record's folder lets only its user in, and so both
are the user's alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from container.system.loop import Loop

Request = Callable[[dict[str, Any]], dict[str, Any]]

#: The longest request, in bytes.
_LINE_LIMIT = 1 << 16


class ControlSocket:
    """``control.sock`` in the record: requests of any process of the user.

    Args:
        loop: The loop that drives it.
        path: The socket; longer than ``sun_path`` holds is fine.
        handle: Answers a request.
    """

    def __init__(self, loop: Loop, path: Path, handle: Request) -> None:
        self._loop = loop
        self._path = path
        self._handle = handle
        self._clients: dict[socket.socket, bytearray] = {}
        path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self._listener.bind(f"/proc/self/fd/{folder}/{path.name}")
        finally:
            os.close(folder)
        os.chmod(path, 0o600)
        self._listener.listen(64)
        self._listener.setblocking(False)
        loop.add_reader(self._listener.fileno(), self._accept)

    def close(self) -> None:
        """Stop listening and remove the socket."""
        self._loop.remove_reader(self._listener.fileno())
        self._listener.close()
        for client in list(self._clients):
            self._drop(client)
        with contextlib.suppress(OSError):
            self._path.unlink()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            client, _ = self._listener.accept()
            client.setblocking(False)
            self._clients[client] = bytearray()
            self._loop.add_reader(client.fileno(), lambda: self._readable(client))

    def _readable(self, client: socket.socket) -> None:
        buffer = self._clients[client]
        try:
            data = client.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(client)
            return
        buffer += data
        if len(buffer) > _LINE_LIMIT:
            self._drop(client)
            return
        for answer in _answers(buffer, self._handle):
            try:
                client.sendall(answer)
            except OSError:
                self._drop(client)
                return

    def _drop(self, client: socket.socket) -> None:
        if self._clients.pop(client, None) is not None:
            self._loop.remove_reader(client.fileno())
            client.close()


class Attachment:
    """The tie to a caller that waits.

    Its end, by end-of-file or by the caller's pid, is told once. A caller that forks (without exec) leaves copies of
    its socket's end in the children, so the pid is watched too.

    Args:
        loop: The loop that drives it.
        fd: Our end of the socket pair.
        caller: The caller's pid, or 0.
        handle: Answers a request.
        gone: Called when the caller is gone.
    """

    def __init__(self, loop: Loop, fd: int, caller: int, handle: Request, gone: Callable[[], None]) -> None:
        self._loop = loop
        self._handle = handle
        self._gone = gone
        self._buffer = bytearray()
        os.set_inheritable(fd, False)
        self._socket: socket.socket | None = socket.socket(fileno=fd)
        self._socket.setblocking(False)
        self._pidfd: int | None = None
        loop.add_reader(fd, self._readable)
        if caller:
            try:
                self._pidfd = os.pidfd_open(caller)
                loop.add_reader(self._pidfd, self._lost)
            except ProcessLookupError:
                loop.call_later(0.0, self._lost)
            except OSError:
                self._pidfd = None  # a kernel without pidfds: end-of-file has to do

    def poke(self) -> None:
        """Tell the caller that there is something new to read."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.send(b"\n")

    def close(self) -> None:
        """Let the caller go: it sees end-of-file."""
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None
        if self._socket is not None:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None

    def _readable(self) -> None:
        if self._socket is None:
            return
        try:
            data = self._socket.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data or len(self._buffer) > _LINE_LIMIT:
            self._lost()
            return
        self._buffer += data
        for _ in _answers(self._buffer, self._handle):
            pass  # the caller reads the record, not answers

    def _lost(self) -> None:
        if self._socket is not None:
            self.close()
            self._gone()


def _answers(buffer: bytearray, handle: Request) -> list[bytes]:
    """Take the whole lines off the buffer and answer each."""
    answers = []
    while (end := buffer.find(b"\n")) >= 0:
        line = bytes(buffer[:end])
        del buffer[: end + 1]
        try:
            message = json.loads(line)
            answer = handle(message) if isinstance(message, dict) else {"ok": False, "error": "not a JSON object."}
        except (ValueError, RecursionError):
            answer = {"ok": False, "error": "not JSON."}
        answers.append(json.dumps(answer).encode() + b"\n")
    return answers
