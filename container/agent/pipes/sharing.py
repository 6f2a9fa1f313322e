"""Read objects only once for several ranks of a host that need the same objects at about the same time.

Each rank of a host has its own stream of a channel: either all records, or every P-th record. Both kinds of stream need
all bytes of the objects. The first rank that needs a block of an object reads the block, which is then kept in memory
for the other ranks. The total size of the kept blocks is limited. If a rank is slow or starts late, blocks may be
removed before the rank needs them. That rank then reads the rest of the object from the source. Therefore no rank ever
waits for a slower rank.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator

#: Maximum total size, in bytes, of a channel's blocks that are kept for slower ranks.
WINDOW = 64 << 20

Key = tuple[int, int]
Read = Callable[[], Generator[bytes, None, None]]


class SharedObjects:
    """The objects that the readers of one channel share.

    Args:
        readers: Number of readers.
        window: Maximum total size of the kept blocks in bytes. The newest block is kept even if it alone exceeds the
            maximum.
    """

    def __init__(self, readers: int, window: int = WINDOW) -> None:
        self._readers = readers
        self._window = window
        self._objects: dict[Key, _Object] = {}  # in order of age, the oldest first
        self._lock = threading.Lock()  # for all shared state; never held during a read

    @property
    def kept(self) -> int:
        """Return the total size of the kept blocks in bytes."""
        with self._lock:
            return sum(shared.kept for shared in self._objects.values())

    def pieces(self, key: Key, read: Read) -> Iterator[bytes]:
        """Yield an object's bytes, block by block, for one reader.

        Args:
            key: The epoch, and the object's number in the epoch.
            read: A function that reads the object from its beginning. Each call must yield the same bytes.
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
            yield from _from(read(), offset)  # this reader was too far behind the other readers

    def _join(self, key: Key, read: Read) -> _Object:
        with self._lock:
            shared = self._objects.get(key)
            if shared is None:
                shared = self._objects[key] = _Object(read())
            shared.readers += 1
            shared.came += 1
            return shared

    def _piece(self, shared: _Object, offset: int) -> bytes | None:
        """Return the block that begins at an offset. Return None at the object's end, or if the block is no longer
        kept.
        """
        with self._lock:
            piece = shared.pieces.get(offset)
            if piece is not None or offset != shared.size:
                return piece
        with shared.turn:  # other readers that need the same piece wait here
            with self._lock:
                piece = shared.pieces.get(offset)
                if piece is not None or offset != shared.size or shared.ended or shared.failed:
                    return piece
            try:
                piece = next(shared.source, None)
            except BaseException:
                # this reader raises the error; the other readers read the object by themselves, and get the same error
                shared.failed = True
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
        """Remove kept blocks until a new block of ``size`` bytes fits.

        Blocks of objects without current readers are removed first. Then the oldest blocks of the other objects are
        removed.
        """
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
            # A complete object is kept for readers that have not read it yet.
            if (shared.came >= self._readers or not shared.ended) and self._objects.get(key) is shared:
                del self._objects[key]
            shared.failed |= not shared.ended
        shared.source.close()


class _Object:
    """One object that several readers share.

    Attributes:
        source: Yields the object's blocks.
        turn: The lock that a thread holds while it reads a block from ``source``.
        readers: Number of current readers.
        came: Number of current and earlier readers.
        pieces: The kept blocks by their offsets, in the order in which they were read.
        kept: Total size of the kept blocks in bytes.
        size: Number of bytes that were read from ``source`` so far.
        ended: Whether the object was read completely.
        failed: Whether ``source`` cannot yield more blocks.
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
        """Return whether the object was read completely and has exactly ``offset`` bytes."""
        return self.ended and offset == self.size


def _from(pieces: Iterator[bytes], offset: int) -> Iterator[bytes]:
    """Yield the bytes that follow the first ``offset`` bytes."""
    for piece in pieces:
        if offset >= len(piece):
            offset -= len(piece)
            continue
        yield piece[offset:] if offset else piece
        offset = 0
