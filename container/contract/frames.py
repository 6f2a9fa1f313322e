"""Encode and decode the frames that a job's supervisor and the agents of its hosts send to each other.

A frame is a message (:mod:`.messages`), followed by bytes. The message's field ``size`` is the number of these bytes. A
host's output and copied files are sent in small frames, so that a message need not wait until a large file has been
sent completely.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from container.contract import messages
from container.contract.messages import Message, MessageError

#: Limits, in bytes, on a line and on the bytes that follow the line, so that the sender cannot fill the receiver's
#: memory.
LINE_LIMIT = 8 << 20
BODY_LIMIT = 1 << 20


def encode(message: Mapping[str, Any], body: bytes = b"") -> bytes:
    """Encode a message and the bytes that follow the message as a frame.

    Raises:
        MessageError: the message is too long, or there are too many bytes.
    """
    if len(body) > BODY_LIMIT:
        raise MessageError(f"{len(body)} bytes are over a frame's limit of {BODY_LIMIT}")
    return messages.encode({**message, "size": len(body)} if body else message, LINE_LIMIT) + body


class FrameDecoder:
    """A decoder that finds the frames in received data. The data may be received in blocks of any size."""

    def __init__(self) -> None:
        self._decoder = messages.Decoder(LINE_LIMIT)
        self._message: Message | None = None
        self._size = 0
        self._error: MessageError | None = None

    def feed(self, data: bytes) -> Iterator[tuple[Message, bytes]]:
        """Add a block of received data. Yield each frame that is now complete, as its message and its bytes.

        Raises:
            MessageError: the data is not a frame. After this error, each call raises the error again.
        """
        if self._error is not None:
            raise self._error
        self._decoder.feed(data)
        while True:
            if self._message is None:
                try:
                    message = self._decoder.take()
                    size = message.pop("size", 0) if message is not None else 0
                    if not isinstance(size, int) or not 0 <= size <= BODY_LIMIT:
                        raise MessageError("a message has an invalid size")
                except MessageError as error:
                    self._error = error
                    raise
                if message is None:
                    return
                self._message, self._size = message, size
            body = self._decoder.take_bytes(self._size)
            if body is None:
                return
            message, self._message = self._message, None
            yield message, body
