"""Read the content of a request as a stream. The content may be encoded in AWS's chunks (``aws-chunked``)."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from estimators.service.errors import ServiceError

#: The maximum length of a line between two chunks, in bytes.
_LINE_LIMIT = 8192
#: The maximum number of lines after the last chunk.
_TRAILERS = 32
_SIZE = re.compile(rb"\s*([0-9A-Fa-f]{1,15})\s*(;|\r?\n)")


def stream(pieces: Iterator[bytes], *, in_chunks: bool) -> BinaryIO:
    """Return a stream of a request's content.

    Args:
        pieces: An iterator of the content's parts, in the order in which the parts are received. The stream raises the
            errors of the iterator.
        in_chunks: Whether the content is in AWS's chunks. If so, the stream raises ServiceError for an incomplete
            chunk.
    """
    plain = io.BufferedReader(_Pieces(pieces))
    return io.BufferedReader(_Pieces(_without_chunks(plain))) if in_chunks else plain


class _Pieces(io.RawIOBase):
    """A stream that reads pieces of any size from an iterator."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._piece = b""
        self._read = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while self._read == len(self._piece):
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._piece, self._read = piece, 0
        part = memoryview(self._piece)[self._read : self._read + len(buffer)]
        buffer[: len(part)] = part
        self._read += len(part)
        return len(part)


def _without_chunks(source: BinaryIO) -> Iterator[bytes]:
    """Yield the content of AWS's chunks.

    Each chunk begins with a line ``size[;signature]``. The last chunk has size 0, and is followed by trailers.

    Raises:
        ServiceError: a chunk is incomplete.
    """
    while left := _size(source.readline(_LINE_LIMIT)):
        while left:
            data = source.read(min(left, 1 << 16))
            if not data:
                raise _incomplete()
            left -= len(data)
            yield data
        if source.readline(_LINE_LIMIT).strip():
            raise _incomplete()
    for _ in range(_TRAILERS):
        if not source.readline(_LINE_LIMIT).strip():
            return
    raise _incomplete()


def _size(line: bytes) -> int:
    size = _SIZE.match(line)
    if size is None:
        raise _incomplete()
    return int(size[1], 16)


def _incomplete() -> ServiceError:
    return ServiceError("IncompleteBody", "The content is shorter than its length, or its chunks are incomplete.")
