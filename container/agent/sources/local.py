"""List and read data in folders and files of this machine."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TypeAlias

from container.agent.sources.base import DataObject, ObjectStream, SourceError
from container.system.locations import LocationError, local_path

#: A folder, and the folders through which the search has reached it.
_Above: TypeAlias = "tuple[str, _Above | None]"

_CHANGED = "a program wrote to the file while the job read it. Start the job again when the file is complete"


def resolve(uri: str) -> Path:
    """Return the path of the readable folder or file that a plain path or a ``file://`` URL refers to. Symbolic links
    are resolved.

    Raises:
        SourceError: the path does not exist, cannot be read, or is neither a folder nor a file.
    """
    try:
        path = local_path(uri)
    except LocationError as error:
        raise SourceError(uri, str(error)) from None
    try:
        path = path.resolve(strict=True)
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise SourceError(uri, "it does not exist") from None
    except (OSError, RuntimeError) as error:  # RuntimeError: circular links, before Python 3.13
        raise SourceError(uri, f"it cannot be read: {error}") from error
    if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
        raise SourceError(uri, "it is neither a folder nor a file")
    if not os.access(path, os.R_OK | os.X_OK if stat.S_ISDIR(mode) else os.R_OK):
        raise SourceError(uri, "it cannot be read by this user", "Change its mode.")
    return path


def name_of(uri: str) -> str:
    """Return the name of a file as the user wrote it. If the file is a symbolic link, this is the name of the link."""
    return local_path(uri).name


def listing(uri: str) -> list[DataObject]:
    """Return every file below a folder, sorted by the bytes of the files' keys. If ``uri`` is a file, return only this
    file.

    Symbolic links are followed.

    Raises:
        SourceError: as for :func:`resolve`, or a link is broken or circular.
    """
    root = resolve(uri)
    if not root.is_dir():
        return [describe(root, name_of(uri))]
    found: list[DataObject] = []
    _walk(os.fspath(root), found, [])
    return sorted(found, key=lambda item: os.fsencode(item.key))


def tree(uri: str) -> tuple[list[DataObject], list[str]]:
    """Return every file below a folder, and the keys of all folders below this folder, including empty folders.

    If ``uri`` is a file, return only this file and no folders.

    Raises:
        SourceError: as for :func:`listing`.
    """
    root = resolve(uri)
    if not root.is_dir():
        return [describe(root, name_of(uri))], []
    found: list[DataObject] = []
    folders: list[str] = []
    _walk(os.fspath(root), found, folders)
    return found, folders


def describe(path: Path | str, key: str) -> DataObject:
    """Return the data object that describes a file."""
    status = os.stat(path)
    return DataObject(os.fspath(path), status.st_size, identity(status), key)


def identity(status: os.stat_result) -> str:
    """Return a value that changes when a file's content changes."""
    return f"{status.st_mtime_ns}-{status.st_size}-{status.st_ino}"


def _walk(root: str, found: list[DataObject], folders: list[str]) -> None:
    """Append all files and folders below a folder, at any depth, to two lists. Each folder precedes the folders in it.

    Args:
        root: The folder to search.
        found: The list that files are appended to.
        folders: The list that the keys of folders are appended to.

    Raises:
        SourceError: an entry cannot be read, an entry is a pipe, socket or device, or a link leads to a folder that
            contains the link.
    """
    waiting: list[tuple[str, str, _Above]] = [(root, "", (root, None))]
    while waiting:
        folder, prefix, above = waiting.pop()
        try:
            with os.scandir(folder) as scanned:
                entries = list(scanned)
        except OSError as error:
            raise SourceError(folder, f"it cannot be read: {error.strerror}") from error
        for entry in entries:
            key = f"{prefix}{entry.name}"
            try:
                status = entry.stat()
            except OSError as error:
                raise SourceError(entry.path, f"it cannot be read: {error.strerror}", "Repair or remove it.") from error
            if stat.S_ISDIR(status.st_mode):
                inner = entry.path
                if entry.is_symlink():
                    inner = os.path.realpath(entry.path)
                    if _is_among(inner, above):
                        text = f"this link leads to {inner!r}, a folder that contains the link"
                        raise SourceError(entry.path, text, "Remove the link.")
                folders.append(key)
                waiting.append((inner, f"{key}/", (inner, above)))
            elif stat.S_ISREG(status.st_mode):
                found.append(DataObject(entry.path, status.st_size, identity(status), key))
            else:
                raise SourceError(entry.path, "it is a pipe, socket or device", "Move it away.")


def _is_among(path: str, above: _Above | None) -> bool:
    while above is not None:
        folder, above = above
        if folder == path:
            return True
    return False


class LocalStream(ObjectStream):
    """A stream of the bytes of a file."""

    def __init__(self, item: DataObject, offset: int = 0) -> None:
        super().__init__(item, offset)
        try:
            self._file = os.open(item.uri, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise self._error(f"it cannot be read any more: {error.strerror}") from error
        self._open = True
        try:
            self.verify()
            os.lseek(self._file, offset, os.SEEK_SET)
        except BaseException:
            self.close()
            raise

    def fileno(self) -> int:
        """Return the file's descriptor, for splicing. The caller must add the number of spliced bytes to
        ``position``.
        """
        return self._file

    def verify(self) -> None:
        """Verify that the file has not changed.

        Raises:
            SourceError: the file has changed.
        """
        if self._item.identity is not None and identity(os.fstat(self._file)) != self._item.identity:
            raise self._error(f"it changed: {_CHANGED}")

    def readinto(self, buffer: bytearray | memoryview) -> int:
        view = memoryview(buffer)[: max(self._item.size - self.position, 0)]
        done = 0
        while done < len(view):
            try:
                count = os.readv(self._file, [view[done:]])
            except OSError as error:
                raise self._error(f"it cannot be read: {error.strerror}") from error
            if not count:
                raise self._error(f"it ends here, but had {self._item.size:,} bytes when the job began: {_CHANGED}")
            done += count
            self.position += count
        if self.position >= self._item.size:
            self.verify()
        return done

    def close(self) -> None:
        """Close the file."""
        if self._open:
            self._open = False
            os.close(self._file)

    def _error(self, cause: str) -> SourceError:
        return SourceError(self._item.uri, cause, offset=self.position)
