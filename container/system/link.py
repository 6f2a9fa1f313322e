"""Send and receive frames (:mod:`container.contract.frames`) on an event loop, over sockets or pipes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol

from container.contract.frames import FrameDecoder, encode
from container.contract.messages import Message, MessageError
from container.system.loop import Loop

_READ_SIZE = 1 << 18
#: Streams pause when more bytes than the first number are unsent. They resume when at most the second number of bytes
#: is unsent.
_HIGH, _LOW = 4 << 20, 1 << 20


class LinkHandler(Protocol):
    """A receiver of the messages from a link."""

    def received(self, message: Message, body: bytes) -> None:
        """Handle a message and the bytes that follow it."""

    def closed(self, reason: str) -> None:
        """Handle the end of the link.

        The method is called once, when the peer has ended or has sent an invalid frame.
        """


class HostLink:
    """One end of a connection that transfers frames.

    :meth:`send` accepts messages at any time. :meth:`add_reader` adds a stream, which is a descriptor whose data the
    caller forwards to the peer. Streams pause while the peer reads slowly, so that unsent data does not fill the
    memory.

    Args:
        loop: The loop that reads and writes the data.
        read: The descriptor to read from. The link closes it.
        write: The descriptor to write to, which may be the same as ``read``. The link closes it.
        handler: The receiver of messages and of the link's end.
    """

    def __init__(self, loop: Loop, read: int, write: int, handler: LinkHandler) -> None:
        self._loop = loop
        self._read, self._write = read, write
        self._handler = handler
        self._decoder = FrameDecoder()
        self._outgoing = bytearray()
        self._streams: dict[int, Callable[[], object]] = {}
        self._held = False
        self.open = True
        for fd in {read, write}:
            os.set_blocking(fd, False)
            os.set_inheritable(fd, False)
        loop.add_reader(read, self._readable)

    def send(self, message: Message, body: bytes = b"") -> None:
        """Send a message. The message is dropped if the peer has ended."""
        if self.open:
            waiting = bool(self._outgoing)
            self._outgoing += encode(message, body)
            if not waiting:
                self._flush()

    def add_reader(self, fd: int, callback: Callable[[], object]) -> None:
        """Call ``callback`` whenever a descriptor is readable, except while the peer reads slowly."""
        self._streams[fd] = callback
        if not self._held:
            self._loop.add_reader(fd, callback)

    def remove_reader(self, fd: int) -> None:
        """Undo :meth:`add_reader`."""
        if self._streams.pop(fd, None) is not None:
            self._loop.remove_reader(fd)

    def close(self) -> None:
        """Close the link without calling ``closed``. Unsent data is lost."""
        if self.open:
            self.open = False
            self._loop.remove_reader(self._read)
            self._loop.remove_writer(self._write)
            for fd in list(self._streams):
                self.remove_reader(fd)
            for fd in {self._read, self._write}:
                os.close(fd)

    def _lost(self, reason: str) -> None:
        if self.open:
            self.close()
            self._handler.closed(reason)

    def _flush(self) -> None:
        try:
            while self._outgoing:
                with memoryview(self._outgoing) as view:
                    sent = os.write(self._write, view[: 1 << 20])
                del self._outgoing[:sent]
        except BlockingIOError:
            self._loop.add_writer(self._write, self._flush)
        except OSError as error:
            # The end of the connection is reported by the next read, after the peer's last messages were received.
            self._outgoing.clear()
            self._loop.remove_writer(self._write)
            if not isinstance(error, BrokenPipeError | ConnectionResetError):
                self._lost(f"sending failed: {error.strerror}")
            return
        else:
            self._loop.remove_writer(self._write)
        self._hold(len(self._outgoing) > (_LOW if self._held else _HIGH))

    def _hold(self, held: bool) -> None:
        if held != self._held:
            self._held = held
            for fd, callback in self._streams.items():
                if held:
                    self._loop.remove_reader(fd)
                else:
                    self._loop.add_reader(fd, callback)

    def _readable(self) -> None:
        try:
            data = os.read(self._read, _READ_SIZE)
        except BlockingIOError:
            return
        except OSError as error:
            self._lost(f"the connection broke: {error.strerror}")
            return
        if not data:
            self._lost("the connection was closed")
            return
        try:
            for message, body in self._decoder.feed(data):
                self._handler.received(message, body)
                if not self.open:
                    return
        except MessageError as error:
            self._lost(str(error))
