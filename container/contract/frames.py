"""Frames between a job's supervisor and its hosts' agents: a message (:mod:`.messages`), and bytes behind it. Pure.

``size`` says how many bytes follow a message's line. What is printed on a host and what is copied to it and from it
travels as such bytes, beside small messages that must not wait for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from container.contract import messages
from container.contract.messages import Message, MessageError

#: The longest line, and the most bytes behind one. A peer cannot fill the other's memory.
LINE_LIMIT = 8 << 20
BODY_LIMIT = 1 << 20


def encode(message: Mapping[str, Any], body: bytes = b"") -> bytes:
    """Return a frame's bytes.

    Raises:
        MessageError: it is too long.
    """
    if len(body) > BODY_LIMIT:
        raise MessageError(f"{len(body)} bytes are over a frame's limit of {BODY_LIMIT}")
    return messages.encode({**message, "size": len(body)} if body else message, LINE_LIMIT) + body


class FrameDecoder:
    """Finds the frames in what arrives, in whatever pieces that comes."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._searched = 0
        self._message: Message | None = None
        self._size = 0

    def feed(self, data: bytes) -> Iterator[tuple[Message, bytes]]:
        """Take a piece and yield each frame that is whole with it, as the message and its bytes.

        Raises:
            MessageError: what arrived is no frame; nothing behind it can be read.
        """
        self._buffer += data
        while True:
            if self._message is None and not self._take_line():
                return
            if len(self._buffer) < self._size:
                return
            message, self._message = self._message, None
            body = bytes(self._buffer[: self._size])
            del self._buffer[: self._size]
            self._searched = 0
            assert message is not None
            yield message, body

    def _take_line(self) -> bool:
        end = self._buffer.find(b"\n", self._searched)
        if end < 0:
            self._searched = len(self._buffer)
            if self._searched > LINE_LIMIT:
                raise MessageError(f"a line is over the limit of {LINE_LIMIT} bytes")
            return False
        message = messages.decode(bytes(self._buffer[:end]))
        size = message.pop("size", 0)
        if not isinstance(size, int) or not 0 <= size <= BODY_LIMIT:
            raise MessageError("a message has an invalid size")
        del self._buffer[: end + 1]
        self._message, self._size = message, size
        return True
