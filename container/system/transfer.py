"""Send and receive folders and files over a :class:`~container.system.link.HostLink`, as tar archives.

Both ends of the link use this module. The sender packs the archive in a thread, and sends a piece whenever the peer is
ready. The receiver writes the archive to a file without a name, and unpacks it in a thread when the archive is
complete.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from container.system import archive, saved
from container.system.background import Background
from container.system.link import HostLink

if TYPE_CHECKING:
    import tarfile

#: Called with None after success, and with the error after a failure.
Done = Callable[[str | None], None]

_PIECE = 1 << 18
#: How long :meth:`Transfers.close` waits until unpacking has stopped, in seconds.
_STOP_S = 30.0


class Transfers:
    """The transfers of one link.

    Args:
        link: The connection to the peer.
        background: The object that runs blocking calls in threads.
        folder: The folder for incomplete archives. If None, the default folder for temporary files.
    """

    def __init__(self, link: HostLink, background: Background, folder: Path | None = None) -> None:
        self._link = link
        self._background = background
        self.folder = folder
        self._arriving: dict[int, tuple[IO[bytes], Path, Done]] = {}
        self._unpacking: list[threading.Event] = []  # one for each archive; set when the archive was unpacked
        self._closed = threading.Event()

    def send(self, number: int, sources: Sequence[tuple[Path, str]], *, follow: bool) -> None:
        """Send files and folders, then a message that marks the end of the transfer.

        Args:
            number: The number that identifies the transfer on both ends.
            sources: The path of each file or folder, and the name under which it is sent. If the name is empty, a
                folder's entries are sent without the folder. A path that does not exist is omitted.
            follow: Whether to send the targets of links instead of the links.
        """
        read, write = os.pipe()
        end: dict[str, Any] = {"op": "end", "id": number}
        left = {"packing", "sending"}

        def work() -> None:
            with open(write, "wb", buffering=_PIECE) as file:
                pack(file, sources, follow=follow)

        def advance(step: str) -> None:
            left.remove(step)
            if not left:
                self._link.send(end)

        def readable() -> None:
            data = os.read(read, _PIECE)
            if data:
                self._link.send({"op": "data", "id": number}, data)
                return
            self._link.remove_reader(read)
            os.close(read)
            advance("sending")

        def failed(error: Exception) -> None:
            end["error"] = str(error)
            advance("packing")

        self._link.add_reader(read, readable)
        self._background.run(work, lambda nothing: advance("packing"), failed)

    def expect(self, number: int, target: Path, done: Done) -> None:
        """Register a transfer before the peer sends it.

        Args:
            number: The number of the transfer.
            target: The folder into which the archive is unpacked when it is complete.
            done: A function that is called after the archive was unpacked or the transfer has failed.
        """
        file = tempfile.TemporaryFile(dir=self.folder)  # noqa: SIM115 - closed when it was unpacked
        self._arriving[number] = (file, target, done)

    def data(self, number: int, body: bytes) -> None:
        """Write received data to the archive of a transfer."""
        if (arriving := self._arriving.get(number)) is not None:
            arriving[0].write(body)

    def end(self, number: int, error: str | None) -> None:
        """Handle the end of a transfer. Unpack the complete archive in a thread, or report an error.

        Args:
            number: The number of the transfer.
            error: The error of the sender. None if the sender has succeeded.
        """
        if number not in self._arriving:
            return
        file, target, done = self._arriving.pop(number)
        if error is not None:
            file.close()
            done(error)
            return
        unpacked = threading.Event()
        self._unpacking = [other for other in self._unpacking if not other.is_set()] + [unpacked]

        def work() -> None:
            try:
                with file:
                    file.seek(0)
                    readable: Any = _Arrived(file, self._closed)
                    archive.extract_file(readable, target, bounds=archive.UNBOUNDED)
            finally:
                unpacked.set()

        self._background.run(work, lambda nothing: done(None), lambda problem: done(str(problem)))

    def close(self) -> None:
        """Cancel all unpacking, and wait until no more files are written. The target folders can then be removed.

        The wait takes at most 30 seconds for all transfers together.
        """
        self._closed.set()
        until = time.monotonic() + _STOP_S
        for unpacked in self._unpacking:
            unpacked.wait(max(0.0, until - time.monotonic()))


class _Arrived:
    """A received archive. After :meth:`Transfers.close`, reading raises an error, so that the unpacking stops."""

    def __init__(self, file: IO[bytes], closed: threading.Event) -> None:
        self._file = file
        self._closed = closed

    def read(self, size: int = -1) -> bytes:
        if self._closed.is_set():
            raise OSError(errno.ECANCELED, "the transfer was cancelled")
        return self._file.read(size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def left_out(path: Path) -> str:
    """Describe the first file that :func:`pack` would omit: the given file, or an entry of the given folder.

    Return a sentence with the reason and the remedy. Return "" if :func:`pack` would omit nothing.
    """
    inner = (os.path.join(top, name) for top, names, files in os.walk(path, followlinks=True) for name in names + files)
    for one in (str(path), *inner) if not path.is_dir() else inner:
        try:
            mode = os.stat(one).st_mode
        except FileNotFoundError:
            if os.path.islink(one):
                return f"{one!r} links to {os.readlink(one)!r}, which does not exist. Repair or remove it."
            continue  # deleted since it was listed
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            return f"{one!r} is a pipe, socket or device. Move it away."
    return ""


def pack(file: IO[bytes], sources: Sequence[tuple[Path, str]], *, follow: bool) -> None:
    """Write files and folders to a tar archive.

    Only regular files, folders, and links to entries of the same folder are written.

    Args:
        file: The open file for the archive.
        sources: The path of each file or folder, and its name in the archive. If the name is empty, a folder's entries
            are written without the folder.
        follow: Whether to write the targets of links instead of the links.

    Raises:
        OSError: an entry cannot be read.
    """
    import tarfile

    with tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT, dereference=follow) as tar:
        for path, name in sources:
            if path.is_dir():
                _pack(tar, os.path.realpath(path), name, os.path.realpath(path), follow=follow)
            elif path.exists():
                _pack(tar, str(path), name or path.name, "", follow=follow)


def _pack(tar: tarfile.TarFile, path: str, name: str, root: str, *, follow: bool) -> None:
    """Write an entry and all entries below it. If ``name`` is empty, write only the entries below it."""
    try:
        status = os.stat(path, follow_symlinks=follow)
        if stat.S_ISLNK(status.st_mode):
            if not os.path.realpath(path).startswith(root + os.sep):
                return
        elif not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
            return
        if name:
            _add(tar, path, name, status)
        if stat.S_ISDIR(status.st_mode):
            for inner in sorted(os.listdir(path)):
                _pack(tar, os.path.join(path, inner), f"{name}/{inner}" if name else inner, root, follow=follow)
    except FileNotFoundError:
        return  # deleted since it was listed


def _add(tar: tarfile.TarFile, path: str, name: str, status: os.stat_result) -> None:
    entry = tar.gettarinfo(path, name)
    entry.uname = entry.gname = ""
    if entry.issym() and entry.linkname.startswith("/"):
        entry.linkname = saved.target(path)
    if entry.islnk():  # a hard link is sent as an ordinary file: the copies need not share their content
        entry.type = b"0"
        entry.size = status.st_size
        entry.linkname = ""
    if entry.isreg():
        with open(path, "rb") as content:
            tar.addfile(entry, content)
    else:
        tar.addfile(entry)
