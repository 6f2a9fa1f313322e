"""Gzip streams of one or more members, decoded piece by piece."""

from __future__ import annotations

import zlib
from typing import Protocol

#: zlib's window size for gzip.
_GZIP = 31
_CHUNK = 1 << 20


class GzipError(ValueError):
    """The data is not gzip's, damaged, or cut off; the message says which."""


class PackedSource(Protocol):
    """Where the packed bytes come from."""

    def read(self, size: int) -> bytes:
        """Up to ``size`` bytes; none at the end."""


class Gunzip:
    """Reads what a gzip stream holds.

    Args:
        source: The packed bytes.

    Attributes:
        packed: How many packed bytes were taken from the source.
    """

    def __init__(self, source: PackedSource) -> None:
        self._source = source
        self._member = zlib.decompressobj(_GZIP)
        self._begun = False  # the member has had a byte
        self._any = False  # any member has ended
        self._rest = b""
        self.packed = 0

    def read(self, size: int) -> bytes:
        """Up to ``size`` bytes; none at the end.

        Raises:
            GzipError: what is packed is damaged.
        """
        while True:
            if self._member.eof:
                # Another member may follow; so may zeros, which some tapes and tools add.
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
