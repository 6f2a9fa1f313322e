"""Write a FIFO and the notes beside it."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import Protocol

from container.contract.pipes import Note, widen

#: No more is passed on at once.
_PIECE = 1 << 20
#: A reader that makes so much room during a nap, in bytes, is a fast one; and the nap, in seconds, in which the fastest
#: ones read a part of what is in the pipe.
_FAST = 64 << 10
_NAP = 1e-4
#: What splice() says for files that it cannot take from.
_NO_SPLICE = (errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.EXDEV)


class ReaderGone(Exception):
    """Raised when the reader has closed the FIFO, and wants no more of this epoch."""


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
        mode: Who may read that.

    Attributes:
        written: Bytes so far.
    """

    def __init__(self, file: int, notes: Path, *, mode: int = 0o600) -> None:
        self.written = 0
        self._file = file
        self._notes = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        os.fchmod(self._notes, mode)  # whatever the umask
        self._wide = widen(file)

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
        # A writer that waits in the kernel is woken in each read by the reader, who pays for it, in a virtual machine
        # with a tenth of its time. So the wait is a nap, as long as the reader is fast and the pipe holds enough.
        fast = self._wide
        napped = False
        while source.position < size:
            flags = os.SPLICE_F_NONBLOCK if fast else 0
            try:
                count = os.splice(source.fileno(), self._file, min(size - source.position, _PIECE), flags=flags)
            except BlockingIOError:
                fast = not napped
                napped = True
                if fast:
                    time.sleep(_NAP)
                continue
            except BrokenPipeError:
                raise ReaderGone from None
            except OSError as error:
                if error.errno in _NO_SPLICE:
                    return False
                raise
            if not count:
                break
            fast = self._wide and ((fast and not napped) or count >= _FAST)
            napped = False
            source.advance(count)
            self.written += count
        return True
