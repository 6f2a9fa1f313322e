"""Unpack a tar archive that is not trusted.

``tarfile`` has an argument ``filter=`` for such archives only in Python 3.12 and some patch releases of 3.10 and 3.11.
That argument does not limit the size of the unpacked files. This module works with all of these versions.
"""

from __future__ import annotations

import contextlib
import math
import os
import zlib
from pathlib import Path
from typing import IO, TYPE_CHECKING

from container.contract.frozen import dataclass
from container.system.files import write_all

if TYPE_CHECKING:
    import tarfile

#: The largest depth of nested folders.
MAX_DEPTH = 128

#: The largest size of an entry's headers (long names, extended headers), in bytes.
_HEADER_LIMIT = 1 << 20
_BUFFER = 1 << 18


@dataclass(frozen=True)
class ArchiveBounds:
    """Limits on the unpacked content of an archive.

    Attributes:
        size: The largest sum of the sizes of all files, in bytes.
        entries: The largest number of entries.
    """

    size: float = 8 << 30
    entries: float = 200_000


BOUNDED = ArchiveBounds()
#: No limits, for an archive that another process of the same job has sent. The user decides how large it is.
UNBOUNDED = ArchiveBounds(math.inf, math.inf)


class ArchiveError(ValueError):
    """Error for an archive that is damaged or has a forbidden entry. The message names the archive and the entry."""


class _Bounded:
    """A stream from which at most ``allowance`` bytes can be read, so that a small archive cannot fill the memory."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.allowance = 0

    def read(self, size: int) -> bytes:
        if self.allowance <= 0:
            raise ArchiveError("an entry's headers take over 1 MiB")
        data = self._stream.read(size)
        self.allowance -= len(data)
        return data


def is_archive(path: Path) -> bool:
    """Return whether a file looks like a tar archive, compressed with gzip or uncompressed."""
    try:
        with open(path, "rb") as file:
            head = file.read(512)
    except OSError:
        return False
    return head.startswith(b"\x1f\x8b") or head[257:262] == b"ustar"


def extract(archive: Path, target: Path, bounds: ArchiveBounds = BOUNDED) -> None:
    """Unpack ``archive`` into ``target``.

    Nothing is written outside ``target``. Absolute names and names with ``..`` are refused. Links are created last, and
    refused if their targets are outside ``target``. Devices, FIFOs and more than 128 nested folders are refused. Owners
    and set-user-ID bits in the archive are ignored.

    Args:
        archive: The archive, a ``.tar.gz`` or ``.tar`` file.
        target: The folder for the unpacked entries. The folder is created if missing. After an error, it may contain
            some of the files.
        bounds: The limits on the unpacked content.

    Raises:
        ArchiveError: an entry is refused, or the archive is damaged or exceeds a limit.
        OSError: reading or writing failed.
    """
    with open(archive, "rb") as file:
        extract_file(file, target, str(archive), bounds)


def extract_file(file: IO[bytes], target: Path, name: str = "the archive", bounds: ArchiveBounds = BOUNDED) -> None:
    """Unpack an open archive into ``target``, as :func:`extract` does.

    Args:
        file: The open archive, which can seek.
        target: The folder for the unpacked entries.
        name: The archive's name in error messages.
        bounds: The limits on the unpacked content.

    Raises:
        ArchiveError: an entry is refused, or the archive is damaged or exceeds a limit.
        OSError: reading or writing failed.
    """
    import gzip

    packed = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    stream = gzip.GzipFile(fileobj=file, mode="rb") if packed else file
    try:
        _extract(stream, target, name, bounds, _BUFFER)  # type: ignore[arg-type]
    except gzip.BadGzipFile as error:
        raise ArchiveError(f"{name} is not a complete tar.gz ({error}). Pack it again.") from error


def extract_stream(stream: IO[bytes], target: Path, name: str) -> None:
    """Unpack an uncompressed tar archive from a pipe, as :func:`extract_file` does, but without limits on the sizes of
    the files and the number of entries. Data after the archive remains unread in the pipe.

    Raises:
        ArchiveError: an entry is refused, or the archive is damaged.
        OSError: reading or writing failed.
    """
    import tarfile

    _extract(stream, target, name, UNBOUNDED, tarfile.RECORDSIZE)  # the size of a tar file is a multiple of this


def _extract(stream: IO[bytes], target: Path, name: str, bounds: ArchiveBounds, piece: int) -> None:
    import tarfile

    bounded = _Bounded(stream)
    try:
        bounded.allowance = _HEADER_LIMIT
        with tarfile.open(fileobj=bounded, mode="r|", bufsize=piece) as tar:  # type: ignore[call-overload]
            _Unpacking(target, bounded, bounds).run(tar)
    except ArchiveError as error:
        raise ArchiveError(f"{name}: {error}.") from None
    except RecursionError:  # tarfile calls itself for each header that describes the next header
        raise ArchiveError(f"{name}: an entry has too many headers.") from None
    except (tarfile.TarError, EOFError, zlib.error, ValueError) as error:
        raise ArchiveError(f"{name} is not a complete tar.gz ({error}). Pack it again.") from error


class _Unpacking:
    """Unpack the entries of one archive."""

    def __init__(self, target: Path, stream: _Bounded, bounds: ArchiveBounds) -> None:
        self._root = os.fspath(target)
        self._stream = stream
        self._bounds = bounds
        self._folders: dict[str, int] = {}
        self._links: dict[str, str] = {}

    def run(self, tar: tarfile.TarFile) -> None:
        os.makedirs(self._root, exist_ok=True)
        total = entries = 0
        while True:
            self._stream.allowance = _HEADER_LIMIT + _BUFFER
            entry = tar.next()
            if entry is None:
                break
            tar.members = []  # type: ignore[attr-defined]  # tarfile would keep every entry
            if entry.size < 0:
                raise ArchiveError(f"entry {entry.name!r} has a negative size")
            entries += 1
            total += entry.size
            if entries > self._bounds.entries:
                raise ArchiveError(f"it has more than {self._bounds.entries:,} entries")
            if total > self._bounds.size:
                raise ArchiveError(f"it unpacks to more than {self._bounds.size:,} bytes")
            self._stream.allowance = entry.size + _HEADER_LIMIT + 2 * _BUFFER
            self._unpack(tar, entry)
        self._make_links()
        for folder, mode in self._folders.items():
            os.chmod(folder, mode)

    def _unpack(self, tar: tarfile.TarFile, entry: tarfile.TarInfo) -> None:
        name = self._name(entry.name)
        if entry.isdir():
            folder = self._make_folder(name)
            if name:
                self._folders[folder] = entry.mode & 0o777 | 0o700
        elif not name:
            raise ArchiveError(f"entry {entry.name!r} has no name")
        elif entry.issym():
            self._links[name] = entry.linkname
        elif entry.islnk():
            self._make_hard_link(name, entry)
        elif entry.isreg():
            self._write_file(tar, name, entry)
        else:
            raise ArchiveError(f"entry {entry.name!r} is a device, a FIFO or an entry of an unknown kind")

    def _name(self, name: str) -> str:
        """Return the path of an entry relative to the target, in normal form. Return an empty text for the target
        itself.

        Raises:
            ArchiveError: the path is absolute, contains ``..``, or has too many folders.
        """
        if name.startswith("/"):
            raise ArchiveError(f"entry {name!r} has an absolute path")
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if ".." in parts:
            raise ArchiveError(f"entry {name!r} leaves the folder")
        if len(parts) > MAX_DEPTH:
            raise ArchiveError(f"entry {name[:60]!r}… is more than {MAX_DEPTH} folders deep")
        return "/".join(parts)

    def _make_folder(self, name: str) -> str:
        """Create a folder and its parents.

        Raises:
            ArchiveError: one of these paths is a link or a file.
        """
        path = self._root
        for part in name.split("/") if name else ():
            path = os.path.join(path, part)
            try:
                os.mkdir(path)
            except FileExistsError:
                if os.path.islink(path) or not os.path.isdir(path):
                    raise ArchiveError(f"entry {name!r} is both a folder and something else") from None
        return path

    def _place(self, name: str) -> str:
        """Return the path of a new file, and create the file's parent folders. Remove an earlier entry with the same
        name.

        Raises:
            ArchiveError: the path is a folder, or one of its parents is not a folder.
        """
        folder, _, last = name.rpartition("/")
        path = os.path.join(self._make_folder(folder), last)
        if os.path.lexists(path):
            if os.path.isdir(path) and not os.path.islink(path):
                raise ArchiveError(f"entry {name!r} is both a folder and something else")
            os.unlink(path)  # a later entry of the same name wins, as with tar
        self._links.pop(name, None)
        return path

    def _write_file(self, tar: tarfile.TarFile, name: str, entry: tarfile.TarInfo) -> None:
        path = self._place(name)
        reading = tar.extractfile(entry)
        assert reading is not None  # a regular file
        writing = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            left = entry.size
            while left:
                chunk = reading.read(min(left, _BUFFER))
                if not chunk:
                    raise ArchiveError(f"it ends in the middle of {entry.name!r}. Pack it again")
                left -= len(chunk)
                write_all(writing, chunk)
            os.fchmod(writing, entry.mode & 0o777 | 0o600)
            with contextlib.suppress(OverflowError, ValueError):  # a time out of range for a file
                os.utime(writing, (entry.mtime, entry.mtime))
        finally:
            os.close(writing)

    def _make_hard_link(self, name: str, entry: tarfile.TarInfo) -> None:
        path = self._place(name)
        source = os.path.normpath(os.path.join(self._root, entry.linkname))
        root = os.path.realpath(self._root)
        inside = not entry.linkname.startswith("/") and _is_within(os.path.realpath(source), root)
        if not inside or not os.path.isfile(source):
            raise ArchiveError(f"entry {entry.name!r} links to {entry.linkname!r}, which is not an earlier file")
        os.link(source, path, follow_symlinks=False)

    def _make_links(self) -> None:
        """Create the links.

        The links are created after all other entries are unpacked, so that no file is written through a link.

        Raises:
            ArchiveError: a link's target is outside the folder, or another entry has the link's name.
        """
        root = os.path.realpath(self._root)
        made: list[tuple[str, str, str]] = []
        try:
            for name, target in self._links.items():
                folder, _, last = name.rpartition("/")
                path = os.path.join(self._make_folder(folder), last)
                if os.path.lexists(path):
                    raise ArchiveError(f"entry {name!r} is both a link and something else")
                os.symlink(target, path)
                made.append((name, target, path))
            for name, target, path in made:  # the target of a link may depend on other links
                if target.startswith("/") or not _is_within(os.path.realpath(path), root):
                    raise ArchiveError(f"entry {name!r} links to {target!r}, outside the folder")
        except BaseException:  # remove all links, because the targets of some were not checked
            for _, _, path in made:
                os.unlink(path)
            raise


def _is_within(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")
