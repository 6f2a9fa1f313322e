"""Folders and files that travel over a :class:`~container.system.link.Link`, as tar archives in pieces.

Both ends use it: whoever sends packs in a thread, and the pieces go when the peer keeps up; whoever receives keeps the
archive in a file without a name, and unpacks it in a thread when it is whole.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from container.system import archive
from container.system.background import Background
from container.system.link import Link
from container.system.loop import Loop

#: None when it went well, else what was wrong.
Done = Callable[[str | None], None]

_PIECE = 1 << 18
#: How long what is being unpacked may take to stop, in seconds.
_STOP_S = 30.0


class Transfers:
    """What is under way on one link.

    Args:
        loop: The loop.
        link: The connection.
        background: Runs what blocks.
        folder: Where archives wait until they are whole.
    """

    def __init__(self, loop: Loop, link: Link, background: Background, folder: Callable[[], Path]) -> None:
        self._loop = loop
        self._link = link
        self._background = background
        self._folder = folder
        self._arriving: dict[int, tuple[IO[bytes], Path, Done]] = {}
        self._unpacking: list[threading.Event] = []  # set when it is done
        self._closed = threading.Event()

    def send(self, number: int, sources: Sequence[tuple[Path, str]], *, follow: bool) -> None:
        """Send files and folders, each under a name (empty: its entries are the archive's own), then the end.

        Args:
            number: Names the transfer on both ends.
            sources: Paths and names; a path that does not exist is left out.
            follow: Whether to send what links lead to in their place.
        """
        read, write = os.pipe()
        errors: list[str] = []

        def work() -> None:
            with open(write, "wb", buffering=_PIECE) as file:
                pack(file, sources, follow=follow)

        state = {"packed": False, "drained": False}

        def advance(step: str) -> None:
            state[step] = True
            if all(state.values()):
                error = errors[0] if errors else None
                self._link.send({"op": "end", "id": number, **({"error": error} if error else {})})

        def readable() -> None:
            data = os.read(read, _PIECE)
            if data:
                self._link.send({"op": "data", "id": number}, data)
                return
            self._link.remove_source(read)
            os.close(read)
            advance("drained")

        self._link.add_source(read, readable)

        def on_failure(error: Exception) -> None:
            errors.append(str(error))
            advance("packed")

        self._background.run(work, lambda nothing: advance("packed"), on_failure)

    def expect(self, number: int, target: Path, done: Done) -> None:
        """Unpack what comes under a number into a folder."""
        file = tempfile.TemporaryFile(dir=self._folder())  # noqa: SIM115 - closed when it was unpacked
        self._arriving[number] = (file, target, done)

    def data(self, number: int, body: bytes) -> None:
        """A piece has come."""
        if (arriving := self._arriving.get(number)) is not None:
            arriving[0].write(body)

    def end(self, number: int, error: str | None) -> None:
        """Everything has come."""
        arriving = self._arriving.pop(number, None)
        if arriving is None:
            return
        file, target, done = arriving
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
                    archive.extract_file(readable, target, max_bytes=archive.UNBOUNDED, max_entries=archive.UNBOUNDED)
            finally:
                unpacked.set()

        self._background.run(work, lambda nothing: done(None), lambda problem: done(str(problem)))

    def close(self) -> None:
        """Give up what is being unpacked, and return when nothing is written any more: its folder may be removed."""
        self._closed.set()
        until = time.monotonic() + _STOP_S
        for unpacked in self._unpacking:
            unpacked.wait(max(0.0, until - time.monotonic()))


class _Arrived:
    """An archive that has come, until it is given up."""

    def __init__(self, file: IO[bytes], closed: threading.Event) -> None:
        self._file = file
        self._closed = closed

    def read(self, size: int = -1) -> bytes:
        if self._closed.is_set():
            raise OSError(errno.ECANCELED, "the transfer was cancelled")
        return self._file.read(size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def pack(file: IO[bytes], sources: Sequence[tuple[Path, str]], *, follow: bool) -> None:
    """Write files and folders as a tar archive: regular files, folders, and links that stay inside.

    Raises:
        OSError: one cannot be read.
    """
    import tarfile

    with tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT, dereference=follow) as tar:
        for path, name in sources:
            if path.is_dir():
                _pack_folder(tar, str(path), name, os.path.realpath(path), follow=follow)
            elif path.exists():
                _pack_one(tar, str(path), name or path.name, "", follow=follow)


def _pack_folder(tar, path: str, name: str, root: str, *, follow: bool) -> None:  # type: ignore[no-untyped-def]
    if name:
        _pack_one(tar, path, name, root, follow=follow)
    try:
        with os.scandir(path) as scanned:
            entries = sorted(scanned, key=lambda entry: entry.name)
    except FileNotFoundError:
        return  # deleted since it was seen
    for entry in entries:
        inner = f"{name}/{entry.name}" if name else entry.name
        if entry.is_dir(follow_symlinks=follow):
            _pack_folder(tar, entry.path, inner, root, follow=follow)
        else:
            _pack_one(tar, entry.path, inner, root, follow=follow)


def _pack_one(tar, path: str, name: str, root: str, *, follow: bool) -> None:  # type: ignore[no-untyped-def]
    with contextlib.suppress(FileNotFoundError):
        status = os.stat(path, follow_symlinks=follow)
        if stat.S_ISLNK(status.st_mode):
            target = os.path.realpath(path)
            if not target.startswith(root + os.sep):
                return
        elif not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
            return
        entry = tar.gettarinfo(path, name)
        if entry is None:
            return
        entry.uname = entry.gname = ""
        if entry.issym() and entry.linkname.startswith("/"):
            entry.linkname = os.path.relpath(os.path.realpath(path), os.path.realpath(os.path.dirname(path)))
        if entry.islnk():  # a second name of a file: sent again, as it may be apart from the first one
            entry.type = b"0"
            entry.size = status.st_size
            entry.linkname = ""
        if entry.isreg():
            with open(path, "rb") as content:
                tar.addfile(entry, content)
        else:
            tar.addfile(entry)
