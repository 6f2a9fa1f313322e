"""Write the stream of a FIFO, and the notes that tell the reader where objects begin in the stream."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

from container.agent.sources.local import LocalStream
from container.contract.pipes import Note, widen

#: Maximum number of bytes in one call of splice().
_PIECE = 1 << 20
#: A reader is fast if it reads this many bytes while the writer naps. A nap, in seconds, is so short that even the
#: fastest readers read only a part of the pipe's content meanwhile.
_FAST = 64 << 10
_NAP = 1e-4
#: Errors of splice() for files that do not support it.
_NO_SPLICE = (errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.EXDEV)


class ReaderGone(Exception):
    """Raised if the reader has closed the FIFO before the end of the epoch."""


class Pipe:
    """The writing end of a FIFO.

    Args:
        file: The descriptor of the FIFO, open for writing. The descriptor is closed when the ``with`` block ends.
        notes: The path of the file for the notes. The notes tell the reader where objects begin and why the stream
            ends.
        mode: Permissions of the notes' file.

    Attributes:
        written: Number of bytes written so far.
    """

    def __init__(self, file: int, notes: Path, *, mode: int = 0o600) -> None:
        self.written = 0
        self._file = file
        self._notes = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        os.fchmod(self._notes, mode)  # regardless of the umask
        self._wide = widen(file)

    def __enter__(self) -> Pipe:
        return self

    def __exit__(self, *exc: object) -> None:
        os.close(self._notes)
        os.close(self._file)

    def note(self, note: Note) -> None:
        """Write a note for the reader."""
        os.write(self._notes, note.to_line())

    def write(self, data: bytes | memoryview) -> None:
        """Write all of the data. Wait if the FIFO is full.

        Raises:
            ReaderGone: the reader has closed the FIFO.
        """
        view = memoryview(data)
        while view:
            try:
                count = os.write(self._file, view)
            except BrokenPipeError:
                raise ReaderGone from None
            self.written += count
            view = view[count:]

    def splice(self, source: LocalStream, size: int) -> bool:
        """Copy a file's bytes, from the current position to the end, into the FIFO with the kernel's splice call.

        Args:
            source: The file.
            size: Size of the file in bytes.

        Returns:
            True if the kernel can splice the file, even if the file is shorter than ``size`` and fewer bytes were
            copied. False if the kernel cannot splice the file. In this case, nothing was written.

        Raises:
            ReaderGone: the reader has closed the FIFO.
        """
        # If the writer waits in the kernel, each read by the reader wakes the writer. In a virtual machine, this costs
        # the reader a tenth of its time. Therefore the writer naps instead, as long as the reader is fast and the pipe
        # contains enough data.
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
            source.position += count
            self.written += count
        return True
