"""Decompress gzip streams in blocks. A stream may consist of several gzip members."""

from __future__ import annotations

import zlib
from typing import Protocol

#: zlib's window size for gzip.
_GZIP = 31
_CHUNK = 1 << 20


class GzipError(ValueError):
    """Raised if data is not in gzip format, is damaged, or is cut off. The message says which of these is the case."""


class PackedSource(Protocol):
    """The source of the compressed bytes."""

    def read(self, size: int) -> bytes:
        """Return up to ``size`` bytes. Return no bytes at the end."""


class Gunzip:
    """A reader of the decompressed content of a gzip stream.

    Args:
        source: The source of the compressed bytes.

    Attributes:
        packed: Number of compressed bytes that were read from the source.
    """

    def __init__(self, source: PackedSource) -> None:
        self._source = source
        self._member = zlib.decompressobj(_GZIP)
        self._begun = False  # whether the member has got any bytes
        self._any = False  # whether any member has ended
        self._rest = b""
        self.packed = 0

    def read(self, size: int) -> bytes:
        """Return up to ``size`` decompressed bytes. Return no bytes at the end.

        Raises:
            GzipError: the compressed data is not in gzip format, is damaged, or is cut off.
        """
        while True:
            if self._member.eof:
                # Another member may follow, or zeros, which some tapes and tools append.
                self._rest = self._member.unused_data
                self._member = zlib.decompressobj(_GZIP)
                self._begun, self._any = False, True
            data = self._rest or self._fetch()
            at_end = not data
            self._rest = b""
            if self._any and not self._begun:
                data = data.lstrip(b"\0")
                if not data and not at_end:
                    continue
            if at_end and not self._begun:
                return b""
            self._begun = True
            try:
                found = self._member.decompress(data, size)
            except zlib.error as error:
                raise GzipError(f"it cannot be unpacked: {error}") from None
            self._rest = self._member.unconsumed_tail
            if found:
                return found
            if at_end and not self._member.eof:
                raise GzipError("it is cut off: the last gzip member has no end")

    def _fetch(self) -> bytes:
        data = self._source.read(_CHUNK)
        self.packed += len(data)
        return data
