"""The content of a request as it comes: of a known length, in HTTP's chunks, in AWS's, or in both."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from io import BufferedIOBase

from estimators.service.errors import ServiceError

#: The longest line between two chunks, in bytes.
_LINE_LIMIT = 8192
#: The most lines behind the last chunk.
_TRAILERS = 32
_SIZE = re.compile(rb"\s*([0-9A-Fa-f]{1,15})\s*(;|\r?\n)")


class Incoming:
    """A request's content, without what chunks add.

    Args:
        stream: What the connection sends behind the headers.
        headers: The headers, by lower-case names.
        ask: Called before the first byte is read, for clients that wait until they are asked for it.

    Raises:
        ServiceError: the headers do not say how long it is.
    """

    def __init__(self, stream: BufferedIOBase, headers: Mapping[str, str], ask: Callable[[], None]) -> None:
        coding = headers.get("transfer-encoding", "").lower()
        length = headers.get("content-length")
        if coding not in ("", "chunked") or (coding and length is not None):
            raise ServiceError("NotImplemented", "The content must have a Content-Length, or be chunked.", 501)
        if length is not None and not (length.isascii() and length.isdecimal() and len(length) < 16):
            raise ServiceError("InvalidArgument", "The Content-Length is not a number.")
        self._outer = _Chunks(_Plain(stream, None)) if coding else _Plain(stream, int(length or 0))
        self._content: _Plain | _Chunks = self._outer
        self._empty = not coding and not int(length or 0)
        self._broken = False
        self._waits = headers.get("expect", "").lower() == "100-continue"
        self._ask = ask

    def begin(self, digest: str) -> None:
        """Note how the content is signed, which says whether it is in AWS's chunks: with signatures between them."""
        if digest.startswith("STREAMING-"):
            self._content = _Chunks(self._outer)

    def read(self, size: int) -> bytes:
        """Return up to so many of the next bytes; none at the end.

        Raises:
            ServiceError: it ends too early.
        """
        if self._waits:
            self._waits = False
            self._ask()
        try:
            return self._content.read(size)
        except ServiceError:
            self._broken = True
            raise

    def drain(self, limit: int) -> bool:
        """Read and drop what is left, so that the next request can follow; return False if that cannot be.

        There is too much, it is broken, or the client was never asked for it: it may come or not.
        """
        if self._waits or self._broken:
            return self._empty
        with contextlib.suppress(ServiceError):
            while limit > 0:
                dropped = len(self._outer.read(min(limit, 1 << 20)))
                if not dropped:
                    return True
                limit -= dropped
        return False


class _Plain:
    """So many bytes of a stream, or all of them."""

    def __init__(self, stream: BufferedIOBase, length: int | None) -> None:
        self._stream = stream
        self._left = length

    def read(self, size: int) -> bytes:
        data = self._stream.read(size if self._left is None else min(size, self._left))
        if self._left is not None:
            if not data and self._left and size:
                raise _incomplete()
            self._left -= len(data)
        return data

    def readline(self) -> bytes:
        line = self._stream.readline(_LINE_LIMIT if self._left is None else min(_LINE_LIMIT, self._left))
        if self._left is not None:
            self._left -= len(line)
        return line


class _Chunks:
    """What stands in chunks: ``size[;extensions]``, the bytes, and so on until one of size 0 and trailers."""

    def __init__(self, source: _Plain | _Chunks) -> None:
        self._source = source
        self._left = 0
        self._begun = False
        self._ended = False

    def read(self, size: int) -> bytes:
        if not self._left and not self._ended:
            self._next()
        if self._ended:
            return b""
        data = self._source.read(min(size, self._left))
        if not data:
            raise _incomplete()
        self._left -= len(data)
        return data

    def readline(self) -> bytes:
        """Return a line of what the chunks hold, over their borders."""
        line = bytearray()
        while len(line) < _LINE_LIMIT and not line.endswith(b"\n") and (byte := self.read(1)):
            line += byte
        return bytes(line)

    def _next(self) -> None:
        if self._begun and self._source.readline().strip():  # the line that ends the chunk before
            raise _incomplete()
        self._begun = True
        size = _SIZE.match(self._source.readline())
        if size is None:
            raise _incomplete()
        self._left = int(size[1], 16)
        if not self._left:
            for _ in range(_TRAILERS):
                if not self._source.readline().strip():
                    self._ended = True
                    return
            raise _incomplete()


def _incomplete() -> ServiceError:
    return ServiceError(
        "IncompleteBody", "The content is shorter than its length, or has incomplete chunks or too many trailers."
    )
