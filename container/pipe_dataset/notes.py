"""Read the notes that the host agent writes beside a FIFO.

The host agent is fleetfit's process that writes the FIFO. A note reports, for example, at which offset of the stream an
object begins, or that the stream is complete.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from container.contract.pipes import Note, read_notes

_CHUNK = 1 << 20


class Notes:
    """The notes of one stream.

    The host agent writes a note before the bytes that the note describes. Therefore a reader that has received the
    bytes also finds the note.

    Args:
        path: The file of the notes. On SageMaker, the file does not exist.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = -1
        self._rest = b""
        self._all: list[Note] = []
        self._checked = 0

    def all(self) -> list[Note]:
        """Return all notes that were written so far."""
        if self._file < 0:
            with contextlib.suppress(OSError):
                self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        while self._file >= 0 and (data := os.read(self._file, _CHUNK)):
            whole, end, self._rest = (self._rest + data).rpartition(b"\n")
            self._all += read_notes(whole + end)
        return self._all

    @property
    def there(self) -> bool:
        """Return whether notes are written for this stream."""
        return bool(self.all()) or self._file >= 0

    def borders(self, end: int) -> list[int]:
        """Return the offsets at which objects begin in the stream, up to ``end``. Each offset is returned only once."""
        found: list[int] = []
        notes = self.all()
        while self._checked < len(notes) and notes[self._checked].at <= end:
            if notes[self._checked].uri:
                found.append(notes[self._checked].at)
            self._checked += 1
        return found

    def close(self) -> None:
        """Read the remaining notes, and close the file."""
        self.all()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            self._path = Path(os.devnull)
