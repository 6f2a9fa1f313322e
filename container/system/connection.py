"""Send and receive :mod:`container.contract.messages` over connections, on a loop or in blocking programs."""

from __future__ import annotations

import contextlib
import os
import socket
import time

from container.contract.messages import LIMIT, OPERATION, Decoder, Message, MessageError, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from container.system.loop import Loop

_READ_SIZE = 1 << 16
#: The largest number of peers that wait to be accepted. All hosts of a job connect at the same moment, and a host that
#: finds the queue full tries again only after a second. Linux limits the number to net.core.somaxconn (4,096).
BACKLOG = 4096
#: The reason that is reported when the peer has closed the connection, because the peer has finished or was killed.
ENDED = "the connection was closed"


class Connection:
    """One end of a connection whose data is sent and received by an event loop. Sent messages are buffered.

    Args:
        loop: The loop that sends and receives the data.
        end: A connected stream socket, or the descriptor of a pipe. The connection closes ``end``. A pipe is only read,
            and only when the pipe is readable. The descriptor of a pipe may therefore be in blocking mode.
        received: A function that is called with each received message.
        closed: A function that is called once with a reason, when the peer has closed the connection or has sent an
            invalid message.
        limit: The greatest length of a sent or received line, in bytes.
        key: The key that every received message has. See :class:`~container.contract.messages.Decoder`.
        descriptors: The largest number of file descriptors that the peer may pass at once.
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
        """Return whether parts of earlier messages are still unsent."""
        return bool(self._outgoing)

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message. The message is dropped if the connection is closed.

        Raises:
            MessageError: the message is longer than the limit.
        """
        if self.is_open:
            self._outgoing += encode(message, self._limit)
            self._flush()

    def take_descriptors(self) -> list[int]:
        """Return the descriptors that were received with the last messages. The caller must close the descriptors."""
        taken, self._descriptors = self._descriptors, []
        return taken

    def close(self) -> None:
        """Close the connection without calling ``closed``. The kernel still delivers the data that was already sent."""
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
            # The end of the connection is reported by the next read, after the peer's last messages were received.
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
    """One end of a connection, for a program that has no event loop and waits until a message arrives.

    Args:
        sock: A connected stream socket, which the connection closes.
        limit: The greatest length of a sent or received line, in bytes.
    """

    def __init__(self, sock: socket.socket, *, limit: int = LIMIT) -> None:
        self._socket = sock
        self._limit = limit
        self._decoder = Decoder(limit)

    def __enter__(self) -> BlockingConnection:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._socket.fileno()

    def send(self, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Send a message, and pass descriptors together with the message.

        Raises:
            MessageError: the message is longer than the limit.
            OSError: the peer has ended, or does not accept the message within the socket's timeout.
        """
        line = encode(message, self._limit)
        if descriptors:
            line = line[socket.send_fds(self._socket, [line], descriptors) :]
        self._socket.sendall(line)

    def receive(self, timeout: float | None = None) -> Message | None:
        """Wait for the next message.

        Args:
            timeout: The time in seconds within which the whole message must arrive. If None, the socket's timeout
                applies to each read.

        Returns:
            The message. None if the peer has closed the connection.

        Raises:
            MessageError: the received line is not a valid message.
            TimeoutError: the message has not arrived in time.
            OSError: the connection broke.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while (message := self._decoder.take()) is None:
            if deadline is not None:
                if (left := deadline - time.monotonic()) <= 0:
                    raise TimeoutError
                self._socket.settimeout(left)
            if not self.read():
                return None
        return message

    def read(self) -> bool:
        """Read data once, and return whether the connection is still open. :meth:`take` returns the messages in the
        data.
        """
        try:
            data = self._socket.recv(_READ_SIZE)
        except ConnectionResetError:  # the peer ended before it had read everything
            return False
        self._decoder.feed(data)
        return bool(data)

    def take(self) -> Message | None:
        """Return the next complete message of the data that was read so far. Return None if no message is complete.

        Raises:
            MessageError: the received line is not a valid message.
        """
        return self._decoder.take()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


def ask(sock: socket.socket, request: Mapping[str, object], descriptors: Sequence[int]) -> None:
    """Send a request to a :class:`~container.system.fork_server.ForkServer`, together with descriptors.

    Raises:
        OSError: the connection is closed.
    """
    import json  # imported here because every rank imports this module, but only ranks with an importer send requests

    fd = os.memfd_create("request")
    try:
        os.write(fd, json.dumps(request).encode())
        os.lseek(fd, 0, os.SEEK_SET)
        socket.send_fds(sock, [b"{}\n"], [fd, *descriptors])
    finally:
        os.close(fd)


def _receive(sock: socket.socket, most: int) -> tuple[bytes, list[int]]:
    data, descriptors, _, _ = socket.recv_fds(sock, _READ_SIZE, most)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    return data, descriptors


def _keep_alive(sock: socket.socket) -> None:
    """Make the kernel end a TCP connection within about 20 seconds if the peer's machine becomes unreachable."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 20_000)
