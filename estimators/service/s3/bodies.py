"""The content of a request as it comes: of a known length, in HTTP's chunks, in AWS's, or in both."""

from __future__ import annotations

from collections.abc import Mapping
from io import BufferedIOBase

from estimators.service.errors import ServiceError

#: The longest line between two chunks, in bytes.
_LINE_LIMIT = 8192


class Incoming:
    """A request's content, without what chunks add.

    Args:
        stream: What the connection sends behind the headers.
        headers: The headers, by lower-case names.
        aws_chunks: Whether it is in AWS's chunks, which have signatures and checksums between them.

    Raises:
        ServiceError: the headers do not say how long it is.
    """

    def __init__(self, stream: BufferedIOBase, headers: Mapping[str, str], aws_chunks: bool) -> None:
        coding = headers.get("transfer-encoding", "").lower()
        length = headers.get("content-length")
        if coding not in ("", "chunked") or (coding and length is not None):
            raise ServiceError("NotImplemented", "Content comes with a Content-Length or chunked.", 501)
        if length is not None and not (length.isascii() and length.isdecimal() and len(length) < 16):
            raise ServiceError("InvalidArgument", "The Content-Length is not a number.")
        self._outer = _Chunks(_Plain(stream, None), False) if coding else _Plain(stream, int(length or 0))
        self._content = _Chunks(self._outer, True) if aws_chunks else self._outer

    def read(self, size: int) -> bytes:
        """Return up to so many of the next bytes; none at the end.

        Raises:
            ServiceError: it ends too early.
        """
        return self._content.read(size)

    def drain(self, limit: int) -> bool:
        """Read and drop what is left, so that the next request can follow; return False if that is too much."""
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

    def __init__(self, source: _Plain | _Chunks, aws: bool) -> None:
        self._source = source
        self._aws = aws
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
        try:
            self._left = int(self._source.readline().partition(b";")[0].strip(), 16)
        except ValueError:
            raise _incomplete() from None
        if self._left < 0:
            raise _incomplete()
        if not self._left:
            self._ended = True
            while self._source.readline().strip():  # trailers
                pass


def _incomplete() -> ServiceError:
    return ServiceError(
        "IncompleteBody", "You did not provide the number of bytes specified by the Content-Length HTTP header."
    )
