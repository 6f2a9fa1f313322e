"""Memory files that a stream is read into and TensorFlow reads from."""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
from collections import deque

#: How many segments are kept for the next reader: memory that has been used once is several times faster to fill.
_KEPT = 4
#: How many rest before they are kept: a stream that has ended still has segments that TensorFlow has not read.
_RESTING = 8


class Segment:
    """A growing file in memory, mapped into this process.

    TensorFlow opens it by its name, as a file of its own, so that it stays readable for as long as TensorFlow reads it.

    Attributes:
        map: Its content.
        name: A path that this process can open.
    """

    def __init__(self, capacity: int) -> None:
        self._file = os.memfd_create("fleetfit-pipe", os.MFD_CLOEXEC)
        self.capacity = 0
        self.map: mmap.mmap
        self.view: memoryview
        self.name = f"/proc/self/fd/{self._file}"
        self._open = True
        try:
            self._map(capacity)
        except BaseException:
            os.close(self._file)
            raise

    def reserve(self, capacity: int) -> None:
        """Make room for at least so many bytes; the content stays."""
        if capacity > self.capacity:
            self.view.release()
            self.map.close()
            self._map(capacity)
        elif os.fstat(self._file).st_size < self.capacity:
            os.ftruncate(self._file, self.capacity)

    def cut(self, size: int) -> None:
        """Let readers find its end after so many bytes. :meth:`reserve` comes before it is filled again."""
        os.ftruncate(self._file, size)

    def close(self) -> None:
        """Give the memory back, once nobody reads it any more."""
        if self._open:
            self._open = False
            self.view.release()
            self.map.close()
            os.close(self._file)

    def _map(self, capacity: int) -> None:
        os.ftruncate(self._file, capacity)
        self.map = mmap.mmap(self._file, capacity)
        self.view = memoryview(self.map)
        self.capacity = capacity


class SegmentPool:
    """Segments that wait for their next use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: list[Segment] = []
        self._resting: deque[Segment] = deque()

    def take(self, capacity: int) -> Segment:
        """Return a segment of at least ``capacity`` bytes."""
        with self._lock:
            segment = self._free.pop() if self._free else None
        if segment is None:
            return Segment(capacity)
        segment.reserve(capacity)
        return segment

    def give(self, segment: Segment) -> None:
        """Take a segment back that is not filled any more; what was in it may still be read for a while."""
        with self._lock:
            self._resting.append(segment)
            if len(self._resting) <= _RESTING:
                return
            segment = self._resting.popleft()
            if len(self._free) < _KEPT:
                self._free.append(segment)
                return
        with contextlib.suppress(OSError):
            segment.close()


#: This process's.
POOL = SegmentPool()
