"""The writing end of a FIFO, and what is noted beside it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path
from typing import Protocol

from container.contract.pipes import Note

#: The kernel's usual limit for everybody.
_PIPE_SIZE = 1 << 20
#: What splice() says for files that it cannot take from.
_NO_SPLICE = (errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.EXDEV)


class ReaderGone(Exception):
    """The reader has closed the FIFO: it wants no more of this epoch."""


class File(Protocol):
    """A stream of a file of this machine."""

    @property
    def position(self) -> int:
        """The offset of the next byte."""

    def fileno(self) -> int:
        """Its descriptor."""

    def advance(self, count: int) -> None:
        """Count bytes that were taken from the descriptor."""


class Pipe:
    """The writing end.

    Args:
        file: The FIFO, open for writing; closed at the end.
        notes: The file beside it.

    Attributes:
        written: Bytes so far.
    """

    def __init__(self, file: int, notes: Path) -> None:
        self.written = 0
        self._file = file
        self._notes = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with contextlib.suppress(OSError):
            fcntl.fcntl(file, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)

    def __enter__(self) -> Pipe:
        return self

    def __exit__(self, *exc: object) -> None:
        os.close(self._notes)
        os.close(self._file)

    def note(self, note: Note) -> None:
        """Note something for the reader."""
        os.write(self._notes, note.to_line())

    def write(self, data: bytes | memoryview) -> None:
        """Write everything; this waits for the reader.

        Raises:
            ReaderGone: nobody reads any more.
        """
        view = memoryview(data)
        while view:
            try:
                count = os.write(self._file, view)
            except BrokenPipeError:
                raise ReaderGone from None
            self.written += count
            view = view[count:]

    def splice(self, source: File, size: int) -> bool:
        """Pass a file on to its end without copying.

        Args:
            source: The file.
            size: Where it ends.

        Returns:
            Whether that is possible; nothing was written if it is not. It ends early where the file does.

        Raises:
            ReaderGone: nobody reads any more.
        """
        while source.position < size:
            try:
                count = os.splice(source.fileno(), self._file, min(size - source.position, _PIPE_SIZE))
            except BrokenPipeError:
                raise ReaderGone from None
            except OSError as error:
                if error.errno in _NO_SPLICE:
                    return False
                raise
            if not count:
                break
            source.advance(count)
            self.written += count
        return True
