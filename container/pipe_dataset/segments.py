"""Provide files in memory. A stream is read into these files, and TensorFlow reads the files."""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
from collections import deque

#: Maximum number of free segments to keep: memory that has been used before is several times faster to fill.
_KEPT = 4
#: Number of returned segments that are not reused yet: TensorFlow may still read segments of a stream that has ended.
_RESTING = 8


class Segment:
    """A growing file in memory, mapped into this process.

    TensorFlow opens the file by its name, with a separate descriptor. Therefore the file stays readable as long as
    TensorFlow reads it.

    Attributes:
        map: The content of the file.
        name: The path with which this process can open the file.
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
        """Extend the file to at least ``capacity`` bytes. The content is kept."""
        if capacity > self.capacity:
            self.view.release()
            self.map.close()
            self._map(capacity)
        elif os.fstat(self._file).st_size < self.capacity:
            os.ftruncate(self._file, self.capacity)

    def cut(self, size: int) -> None:
        """Truncate the file to ``size`` bytes, so that its readers find its end there. Call :meth:`reserve` before
        filling the file again.
        """
        os.ftruncate(self._file, size)

    def close(self) -> None:
        """Release the memory. Call this method when the file has no more readers."""
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
    """A pool of segments that are reused."""

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
        """Return a segment to the pool. Readers may still read the segment's content for a while."""
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


#: The pool of this process.
POOL = SegmentPool()
