"""What an attached container prints, on the wire.

Without a terminal the engine sends frames: the stream's number, three zero bytes, the length as four big-endian bytes,
then the bytes. Source: Docker Engine API, "Attach to a container", "Stream format".
"""

from __future__ import annotations

import struct

_HEADER = struct.Struct(">BxxxL")


class Frames:
    """Takes the bytes of the connection as they come, and gives what the container printed."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._left = 0  # of the frame that has begun

    def feed(self, data: bytes) -> bytes:
        """Return what ``data`` adds to the output, of both streams in the order in which the container wrote."""
        self._buffer += data
        output = bytearray()
        while self._buffer:
            if self._left == 0:
                if len(self._buffer) < _HEADER.size:
                    break
                _, self._left = _HEADER.unpack_from(self._buffer)
                del self._buffer[: _HEADER.size]
            part = self._buffer[: self._left]
            output += part
            self._left -= len(part)
            del self._buffer[: len(part)]
        return bytes(output)
