"""Map objects to files, and list the objects of a bucket.

An object is normally a file in the bucket's folder, and the key is the file's name. Some keys cannot be file names:
``a`` and ``a/b`` at the same time, ``in/``, ``a//b``, ``../x`` and names of more than 255 bytes. These objects are
stored apart, in a private folder of the server in the bucket. Each of these objects has a folder, which is named by the
hash of the key. The key itself is in a separate file.

A file with the key's name takes precedence. If a user adds such a file, the file replaces the object that is stored
apart. If the user removes the file, that object is visible again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import heapq
import os
import re
import shutil
import stat
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

from container.contract.names import is_text
from estimators.service.errors import ServiceError, denied

#: The server's own folder in a bucket, for objects that cannot be files and for incomplete files. No key refers to
#: it.
OWN = ".fleetfit-s3"

#: The longest name of a file, in bytes.
_NAME_LIMIT = 255
#: A character that sorts after all continuations of a prefix.
_LAST = "\U0010ffff"
#: Maximum number of attempts to write into a new folder. A concurrent deletion may remove the folder while it is empty.
_TRIES = 100
#: Incomplete objects that are older than this number of seconds remain from a server that was killed.
_ABANDONED = 60.0
_STAGED = re.compile(r"new-[0-9a-f]{32}")

_T = TypeVar("_T")

#: Only one thread of this process at a time places or deletes objects.
_placing = threading.Lock()


def bucket_of(folder: Path, name: str) -> Bucket | None:
    """Return a bucket by its name. Return None if the bucket does not exist or is a link."""
    if not name or name.startswith(".") or "/" in name or "\0" in name or len(os.fsencode(name)) > _NAME_LIMIT:
        return None
    place = folder / name
    return None if place.is_symlink() or not place.is_dir() else Bucket(place)


def no_such_bucket() -> ServiceError:
    """Return the error for a bucket that does not exist."""
    return ServiceError("NoSuchBucket", "The specified bucket does not exist", 404)


def behind(prefix: str) -> str:
    """Return a text that sorts after all keys that begin with a prefix."""
    return prefix + _LAST


class Bucket:
    """The objects of a bucket as files.

    Args:
        folder: The bucket's folder, which must not be a link.

    Raises:
        ServiceError: one of the server's private folders in the bucket is a link.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(os.path.realpath(folder))
        self.own = self.folder / OWN
        self._apart = self.own / "keys"
        self.uploads = self.own / "uploads"
        for own in (self.own, self._apart, self.uploads):
            if own.is_symlink():
                raise denied(f"{own} is a symbolic link; links are not followed. Remove it.")

    def find(self, key: str) -> Path | None:
        """Return the file of an object. Return None if the object does not exist. Links are not objects."""
        path = self._file(key)
        if path is not None and _is_file(path) and self._is_inside(path.parent):
            return path
        path = self._place_apart(key) / "object"
        return path if _is_file(path) and self._is_inside(path.parent) else None

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the bucket, so that no other thread or server places or deletes objects during a ``with`` block."""
        try:
            descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise no_such_bucket() from None
        try:
            with _placing:  # on file systems without locks, only this process is locked out
                with contextlib.suppress(OSError):
                    fcntl.flock(descriptor, fcntl.LOCK_EX)
                yield
        finally:
            os.close(descriptor)

    def stage(self) -> tuple[Path, BinaryIO]:
        """Create a new file, which the caller later passes to :meth:`place` or :meth:`discard`.

        The file is locked while it is open.

        Returns:
            The path of the file, and the open file.
        """
        path = self.own / f"new-{uuid.uuid4().hex}"

        def begin() -> BinaryIO:
            file = open(path, "x+b")  # noqa: SIM115 - the caller closes it
            with contextlib.suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file

        return path, self.within(self.own, begin)

    def within(self, folder: Path, write: Callable[[], _T]) -> _T:
        """Create a folder, call ``write``, and return its result. ``write`` writes a file into the folder.

        If a concurrent deletion removes the folder while it is still empty, try again.

        Raises:
            ServiceError: a link leads out of the bucket, or the folder was removed too often.
            FileExistsError, NotADirectoryError: a file has the folder's path, or the path of one of its parents.
        """
        for _ in range(_TRIES):
            if not self.folder.is_dir():
                raise no_such_bucket()
            if not self._is_inside(folder):
                raise denied("The path leads through a symbolic link in the bucket's folder; links are not followed.")
            try:
                folder.mkdir(parents=True, exist_ok=True)
                return write()
            except FileNotFoundError:
                continue
            except FileExistsError:
                # The file in the way may have been removed meanwhile.
                if any(os.path.lexists(each) and not each.is_dir() for each in (folder, *folder.parents)):
                    raise
        raise ServiceError(
            "SlowDown",
            "The object was not written: another process removes the object's folders as fast as they are made. "
            "Try again.",
            503,
        )

    def place(self, staged: Path, key: str) -> None:
        """Move a staged file to its place, so that it becomes the object with a key. The move is atomic.

        Call this method while the bucket is :meth:`locked`.

        Raises:
            ServiceError: a link leads out of the bucket.
            OSError: the file cannot be written.
        """
        path = self._file(key)
        if path is None or not self._place_file(staged, path):
            self._put_apart(staged, key)
        else:
            self._remove_apart(key)

    def discard(self, staged: Path) -> None:
        """Remove a staged file if the file still exists."""
        with contextlib.suppress(FileNotFoundError):
            staged.unlink()
        self.tidy()

    def delete(self, key: str) -> None:
        """Remove an object if it exists, and all parent folders that are then empty.

        Call this method while the bucket is :meth:`locked`.
        """
        path = self._file(key)
        if path is not None and _is_file(path) and self._is_inside(path.parent):
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
            for parent in path.parents:
                if parent == self.folder or not _remove_empty(parent):
                    break
        self._remove_apart(key)
        self.tidy()

    def tidy(self) -> None:
        """Remove the server's private folders from the bucket if these folders are empty."""
        for own in (self._apart, self.uploads, self.own):
            _remove_empty(own)

    def sweep(self) -> None:
        """Remove the incomplete objects and uploads that killed servers have left."""
        for path in self.own.glob("new-*"):
            if _STAGED.fullmatch(path.name):
                with contextlib.suppress(OSError), open(path, "r+b") as file:
                    # a server that still writes the file holds its lock
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()
        for path in self._apart.glob("*"):
            if not _is_file(path / "object") and _age(path) > _ABANDONED:
                shutil.rmtree(path, ignore_errors=True)
        for path in self.uploads.glob("*"):
            if not _is_file(path / "upload.json") and _age(path) > _ABANDONED:
                shutil.rmtree(path, ignore_errors=True)
        self.tidy()

    def walk(self, prefix: str = "", after: str = "", delimiter: str = "") -> Iterator[tuple[str, bool]]:
        """Yield the keys with a prefix that sort after a given text, sorted by their bytes in UTF-8 as on S3.

        Args:
            prefix: The prefix of the keys.
            after: The text after which the yielded keys and common prefixes sort.
            delimiter: The delimiter of common prefixes. Keys that contain the delimiter after the prefix are combined
                to a common prefix, which ends with the delimiter. If empty, no keys are combined.

        Yields:
            A key or a common prefix, and whether it is a common prefix.
        """
        files = self._files_below(self.folder, "", prefix, after, delimiter)
        last = None
        for key in heapq.merge(files, self._keys_apart(prefix, after)):
            end = key.find(delimiter, len(prefix)) if delimiter else -1
            if end < 0:
                yield key, False
            elif (rolled := key[: end + len(delimiter)]) not in (last, after):
                last = rolled
                yield rolled, True

    def _file(self, key: str) -> Path | None:
        """Return the file with the key's name. Return None if the key cannot be a file name."""
        parts = key.split("/")
        if any(part in ("", ".", "..") or "\0" in part or part.startswith(OWN) for part in parts):
            return None
        if any(len(os.fsencode(part)) > _NAME_LIMIT for part in parts):
            return None
        return self.folder.joinpath(*parts)

    def _place_apart(self, key: str) -> Path:
        """Return the folder of an object whose key cannot be a file name."""
        return self._apart / hashlib.sha256(key.encode("utf-8")).hexdigest()

    def _is_inside(self, folder: Path) -> bool:
        """Return whether the path from the bucket to a folder contains no link. Only the existing part of the path is
        examined.
        """
        return os.path.realpath(folder) == os.fspath(folder)

    def _place_file(self, staged: Path, path: Path) -> bool:
        """Move a staged file to a path, and return whether this was possible.

        Return False if a different file or folder is in the way, or the file system does not support the path.
        """
        try:
            self.within(path.parent, lambda: _move(staged, path))
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            return False
        except OSError as error:
            if error.errno not in (errno.ENAMETOOLONG, errno.EINVAL):
                raise
            return False
        return True

    def _put_apart(self, staged: Path, key: str) -> None:
        place = self._place_apart(key)

        def move() -> None:
            name = place / "key"
            if not _is_file(name):
                new = place / f"new-{uuid.uuid4().hex}"
                new.write_text(key, encoding="utf-8")
                os.replace(new, name)
            os.replace(staged, place / "object")

        self.within(place, move)

    def _remove_apart(self, key: str) -> None:
        place = self._place_apart(key)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            (place / "object").unlink()  # first, because the object does not exist without this file
        shutil.rmtree(place, ignore_errors=True)

    def _files_below(self, folder: Path, base: str, prefix: str, after: str, delimiter: str) -> Iterator[str]:
        """Yield the keys of a folder's files, sorted.

        For a folder that becomes a common prefix, only one key is yielded.
        """
        found = []
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
            for entry in entries:
                key = base + entry.name
                if entry.name.startswith(OWN) or not is_text(key):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    found.append(key + "/")
                elif entry.is_file(follow_symlinks=False):
                    found.append(key)
        for key in sorted(found):
            if not key.endswith("/"):
                if key.startswith(prefix) and key > after:
                    yield key
            elif (key.startswith(prefix) or prefix.startswith(key)) and (key > after or after.startswith(key)):
                below = self._files_below(folder / key[len(base) : -1], key, prefix, after, delimiter)
                if delimiter == "/" and len(key) > len(prefix):
                    yield from (first for first in [next(below, None)] if first is not None)
                else:
                    yield from below

    def _keys_apart(self, prefix: str, after: str) -> list[str]:
        found = []
        with contextlib.suppress(FileNotFoundError), os.scandir(self._apart) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    key = Path(entry.path, "key").read_text(encoding="utf-8")
                    if key.startswith(prefix) and key > after and self.find(key) == Path(entry.path, "object"):
                        found.append(key)
        return sorted(found)


def _move(staged: Path, path: Path) -> None:
    """Move a file atomically, with its attributes. The target may be on another mounted file system."""
    try:
        os.replace(staged, path)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        beside = path.with_name(f"{OWN}-{uuid.uuid4().hex}")
        try:
            shutil.copy2(staged, beside)
            os.replace(beside, path)
        finally:
            beside.unlink(missing_ok=True)


def _age(path: Path) -> float:
    """Return the time since a file was last changed, in seconds. Return 0 if the file does not exist."""
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except (OSError, ValueError):
        return False


def _remove_empty(folder: Path) -> bool:
    try:
        folder.rmdir()
    except OSError:
        return False
    return True
