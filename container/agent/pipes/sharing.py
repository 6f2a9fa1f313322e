"""Read objects once for several ranks of a host that read them at about the same time.

Each rank of a host has its own stream of a channel: all of it, or every P-th record of it. The bytes are the same ones.
The first rank that wants a piece reads it, and the others find it here, as long as they are not too far behind. What
is kept is bounded; a rank that is further behind, because it trains more slowly or comes later, reads by itself until
the next object. So no rank ever waits for another.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator

#: Bytes of a channel that are kept for ranks that are behind.
WINDOW = 64 << 20

Key = tuple[int, int]
Read = Callable[[], Generator[bytes, None, None]]


class SharedObjects:
    """The objects that the readers of one channel share.

    Args:
        readers: How many there are.
        window: Bytes that are kept at most, beside the piece that was read last.
    """

    def __init__(self, readers: int, window: int = WINDOW) -> None:
        self._readers = readers
        self._window = window
        self._objects: dict[Key, _Object] = {}  # the oldest first
        self._lock = threading.Lock()  # for all that is kept; never held while something is read

    @property
    def kept(self) -> int:
        """Bytes that are kept."""
        with self._lock:
            return sum(shared.kept for shared in self._objects.values())

    def pieces(self, key: Key, read: Read) -> Iterator[bytes]:
        """Yield an object's bytes, in pieces, for one reader.

        Args:
            key: The epoch, and the object's place in it.
            read: Reads the object from its beginning; the same bytes each time.
        """
        shared = self._join(key, read)
        offset = 0
        try:
            while not shared.ends_at(offset):
                piece = self._piece(shared, offset)
                if piece is None:
                    break
                yield piece
                offset += len(piece)
        finally:
            self._leave(key, shared)
        if not shared.ends_at(offset):
            yield from _from(read(), offset)  # too far behind the others

    def _join(self, key: Key, read: Read) -> _Object:
        with self._lock:
            shared = self._objects.get(key)
            if shared is None:
                shared = self._objects[key] = _Object(read())
            shared.readers += 1
            shared.came += 1
            return shared

    def _piece(self, shared: _Object, offset: int) -> bytes | None:
        """Return the piece that begins at an offset; None at the object's end, or if it is no longer kept."""
        with self._lock:
            piece = shared.pieces.get(offset)
            if piece is not None or offset != shared.size:
                return piece
        with shared.turn:  # the others want the same piece, and wait for it
            with self._lock:
                piece = shared.pieces.get(offset)
                if piece is not None or offset != shared.size or shared.ended or shared.failed:
                    return piece
            try:
                piece = next(shared.source, None)
            except BaseException:
                shared.failed = True  # this reader says why; the others read by themselves, and meet it too
                raise
            with self._lock:
                if piece is None:
                    shared.ended = True
                else:
                    self._make_room(len(piece))
                    shared.pieces[offset] = piece
                    shared.kept += len(piece)
                    shared.size += len(piece)
            return piece

    def _make_room(self, size: int) -> None:
        """Let go of what is oldest, first of objects that nobody reads now."""
        excess = sum(shared.kept for shared in self._objects.values()) + size - self._window
        for key in [key for key, shared in self._objects.items() if not shared.readers]:
            if excess <= 0:
                return
            excess -= self._objects.pop(key).kept
        for shared in self._objects.values():
            while excess > 0 and shared.pieces:
                freed = len(shared.pieces.pop(next(iter(shared.pieces))))
                shared.kept -= freed
                excess -= freed

    def _leave(self, key: Key, shared: _Object) -> None:
        with self._lock:
            shared.readers -= 1
            if shared.readers:
                return
            # Whole, it waits for those who have not been here yet.
            if (shared.came >= self._readers or not shared.ended) and self._objects.get(key) is shared:
                del self._objects[key]
            shared.failed |= not shared.ended
        shared.source.close()


class _Object:
    """One object that is being read, or was.

    Attributes:
        source: Reads it.
        turn: Held while a piece is read.
        readers: How many are at it.
        came: How many have been at it.
        pieces: Offset -> a piece that is kept, in their order.
        kept: Bytes of these.
        size: Bytes that were read so far.
        ended: Whether that is all.
        failed: Whether it cannot be read on.
    """

    def __init__(self, source: Generator[bytes, None, None]) -> None:
        self.source = source
        self.turn = threading.Lock()
        self.readers = 0
        self.came = 0
        self.pieces: dict[int, bytes] = {}
        self.kept = 0
        self.size = 0
        self.ended = False
        self.failed = False

    def ends_at(self, offset: int) -> bool:
        """Return whether it is known to end at an offset."""
        return self.ended and offset == self.size


def _from(pieces: Iterator[bytes], offset: int) -> Iterator[bytes]:
    """Yield the bytes from an offset on."""
    for piece in pieces:
        if offset >= len(piece):
            offset -= len(piece)
            continue
        yield piece[offset:] if offset else piece
        offset = 0
