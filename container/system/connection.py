"""Connections that carry :mod:`container.contract.messages`: on a loop, and for programs that wait."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time

from container.contract.messages import LIMIT, OPERATION, Decoder, Message, MessageError, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from container.system.loop import Loop

_READ_SIZE = 1 << 16
#: Peers that may wait to be accepted at once. All hosts of a job come in the same moment, and one that finds the queue
#: full tries again only after a second. Linux cuts it to net.core.somaxconn (4,096).
BACKLOG = 4096
#: Why a connection is closed whose peer has closed it: it said all that it wanted to, or was killed.
ENDED = "the connection was closed"


class Connection:
    """One end of a connection, on a loop. Messages sent are buffered; ``closed`` is called once.

    Args:
        loop: The loop that drives it.
        end: A connected stream socket, or a pipe's descriptor that is only read, when there is something: it may
            block. The connection owns it.
        received: Called with each message.
        closed: Called with the reason when the peer is gone or sends what is no message.
        limit: The longest line in bytes, either way.
        key: What every message received has; see :class:`~container.contract.messages.Decoder`.
        descriptors: How many descriptors the peer may pass at once.
    """

    def __init__(
        self,
        loop: Loop,
        end: socket.socket | int,
        received: Callable[[Message], object],
        closed: Callable[[str], object],
        *,
        limit: int = LIMIT,
        key: str | None = OPERATION,
        descriptors: int = 0,
    ) -> None:
        self._loop = loop
        self._end = end
        self._fd = end if isinstance(end, int) else end.fileno()
        self.received = received
        self.closed = closed
        self._limit = limit
        self._decoder = Decoder(limit, key=key)
        self._outgoing = bytearray()
        self._most_descriptors = descriptors
        self._descriptors: list[int] = []
        self.is_open = True
        if isinstance(end, socket.socket):
            end.setblocking(False)
            if end.family != socket.AF_UNIX:
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                _keep_alive(end)
        loop.add_reader(self._fd, self._on_readable)

    @property
    def congested(self) -> bool:
        """Whether the peer has yet to take what was sent before."""
        return bool(self._outgoing)

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message; one to a closed connection is dropped (``closed`` has told).

        Raises:
            MessageError: it is over the limit.
        """
        if self.is_open:
            self._outgoing += encode(message, self._limit)
            self._flush()

    def take_descriptors(self) -> list[int]:
        """Return the descriptors that came with the last messages; they are the caller's from now on."""
        taken, self._descriptors = self._descriptors, []
        return taken

    def close(self) -> None:
        """Close without calling ``closed``. What has been sent is still delivered by the kernel."""
        if self.is_open:
            self.is_open = False
            self._loop.remove_reader(self._fd)
            self._loop.remove_writer(self._fd)
            if isinstance(self._end, socket.socket):
                self._end.close()
            else:
                os.close(self._end)
            for descriptor in self.take_descriptors():
                os.close(descriptor)

    def exchange(self, seconds: float) -> None:
        """Send and receive what there is, without the loop, waiting so long at most."""
        if not self.is_open:
            return
        ready = select.poll()
        ready.register(self._fd, select.POLLIN | (select.POLLOUT if self._outgoing else 0))
        for _, events in ready.poll(seconds * 1000):
            if events & select.POLLOUT:
                self._flush()
            if self.is_open and events & ~select.POLLOUT:
                self._on_readable()

    def _lost(self, reason: str) -> None:
        if self.is_open:
            self.close()
            self.closed(reason)

    def _flush(self) -> None:
        try:
            sent = os.write(self._fd, self._outgoing)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            # The reader sees the end too, with whatever the peer said last still to be read.
            self._outgoing.clear()
            self._loop.remove_writer(self._fd)
            if not isinstance(error, BrokenPipeError | ConnectionResetError):
                self._lost(f"sending failed: {error}")
            return
        del self._outgoing[:sent]
        if self._outgoing:
            self._loop.add_writer(self._fd, self._flush)
        else:
            self._loop.remove_writer(self._fd)

    def _on_readable(self) -> None:
        try:
            data = self._read()
        except BlockingIOError:
            return
        except OSError as error:
            self._lost(f"the connection broke: {error.strerror}")
            return
        if not data:
            self._lost(ENDED)
            return
        if len(self._descriptors) > self._most_descriptors:
            self._lost("it passed more file descriptors than expected")
            return
        self._decoder.feed(data)
        while self.is_open and (message := self._take()) is not None:
            self.received(message)

    def _take(self) -> Message | None:
        try:
            return self._decoder.take()
        except MessageError as error:
            self._lost(str(error))
            return None

    def _read(self) -> bytes:
        if not self._most_descriptors or isinstance(self._end, int):
            return os.read(self._fd, _READ_SIZE)
        data, descriptors = _receive(self._end, self._most_descriptors)
        self._descriptors += descriptors
        return data


class BlockingConnection:
    """One end of a connection, for a program that waits for its answers.

    Args:
        sock: A connected stream socket; the connection owns it.
        limit: The longest line in bytes, either way.
        key: What every message received has; see :class:`~container.contract.messages.Decoder`.
    """

    def __init__(self, sock: socket.socket, *, limit: int = LIMIT, key: str | None = OPERATION) -> None:
        self._socket = sock
        self._limit = limit
        self._decoder = Decoder(limit, key=key)
        self._descriptors: list[int] = []

    def __enter__(self) -> BlockingConnection:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._socket.fileno()

    def send(self, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Send a message, with descriptors beside it.

        Raises:
            MessageError: it is over the limit.
            OSError: the peer is gone, or does not take it within the socket's timeout.
        """
        line = encode(message, self._limit)
        if descriptors:
            line = line[socket.send_fds(self._socket, [line], descriptors) :]
        self._socket.sendall(line)

    def receive(self, timeout: float | None = None, *, descriptors: int = 0) -> Message | None:
        """Wait for the next message.

        Args:
            timeout: Seconds for it to come; None for the socket's own for each of its parts.
            descriptors: How many descriptors may come with it; see :meth:`take_descriptors`.

        Returns:
            The message; None when the peer has closed the connection.

        Raises:
            MessageError: it is no message.
            TimeoutError: it has not come in time.
            OSError: the connection broke.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while (message := self._decoder.take()) is None:
            if deadline is not None:
                if (left := deadline - time.monotonic()) <= 0:
                    raise TimeoutError
                self._socket.settimeout(left)
            if not self.read(descriptors):
                return None
        return message

    def read(self, descriptors: int = 0) -> bool:
        """Read once; returns whether the connection is still open. What has come is had by :meth:`take`."""
        try:
            if descriptors:
                data, passed = _receive(self._socket, descriptors)
                self._descriptors += passed
            else:
                data = self._socket.recv(_READ_SIZE)
        except ConnectionResetError:  # the peer ended without having read everything
            return False
        self._decoder.feed(data)
        return bool(data)

    def take(self) -> Message | None:
        """Return the next message of what has been read, if there is one.

        Raises:
            MessageError: it is no message.
        """
        return self._decoder.take()

    def take_descriptors(self) -> list[int]:
        """Return the descriptors that came with the last messages; they are the caller's from now on."""
        taken, self._descriptors = self._descriptors, []
        return taken

    def close(self) -> None:
        """Close it, and descriptors that nobody took."""
        for descriptor in self.take_descriptors():
            os.close(descriptor)
        self._socket.close()


def _receive(sock: socket.socket, most: int) -> tuple[bytes, list[int]]:
    data, descriptors, _, _ = socket.recv_fds(sock, _READ_SIZE, most)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    return data, descriptors


def _keep_alive(sock: socket.socket) -> None:
    """Notice a machine that vanished without a word (no FIN) within some 20 seconds."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 20_000)
