"""Where an object lies, and which objects there are.

An object is the file of its key's name in its bucket's folder. Not all keys can be such files: ``a`` and ``a/b`` not
beside each other, ``in/``, ``a//b``, ``../x`` and names of more than 255 bytes never. These lie apart: in a folder of
our own in the bucket, each in a folder named by the hash of its key, with the key as a file beside it. A file of the
key's name always comes first: whoever puts one there by hand has put another object, and whoever takes it away has the
one that lies apart again.
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

from estimators.service.errors import ServiceError, denied

#: Our own folder in a bucket: objects that cannot be files, and what is being written. No key leads there.
OWN = ".fleetfit-s3"

#: The longest name of a file, in bytes.
_NAME_LIMIT = 255
#: Sorts behind every key that begins with what stands before it.
_LAST = "\U0010ffff"
#: How often a folder is made again that a deletion beside us takes away since it is empty.
_TRIES = 100
#: What is half written for so long is a dead server's, in seconds.
_ABANDONED = 60.0
_STAGED = re.compile(r"new-[0-9a-f]{32}")

_T = TypeVar("_T")

#: One thread of this process at a time places or deletes objects.
_placing = threading.Lock()


def bucket_of(folder: Path, name: str) -> Bucket | None:
    """Return a bucket by its name; None if there is none. A link is none."""
    if not name or name.startswith(".") or "/" in name or "\0" in name or len(os.fsencode(name)) > _NAME_LIMIT:
        return None
    place = folder / name
    return None if place.is_symlink() or not place.is_dir() else Bucket(place)


def no_such_bucket() -> ServiceError:
    """Return the error for a bucket that does not exist."""
    return ServiceError("NoSuchBucket", "The specified bucket does not exist", 404)


def behind(prefix: str) -> str:
    """Return what sorts behind all keys with a prefix."""
    return prefix + _LAST


class Bucket:
    """A bucket's objects as files.

    Args:
        folder: The bucket's folder, which is no link.

    Raises:
        ServiceError: a folder of our own in it is a link.
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
        """Return the file that an object is; None if there is no such object. Links are no objects."""
        path = self._file(key)
        if path is not None and _is_file(path) and self._is_inside(path.parent):
            return path
        path = self._place_apart(key) / "object"
        return path if _is_file(path) and self._is_inside(path.parent) else None

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Let nobody else place or delete an object here meanwhile, in whichever server."""
        try:
            descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise no_such_bucket() from None
        try:
            with _placing:  # file systems without locks have it within this process at least
                with contextlib.suppress(OSError):
                    fcntl.flock(descriptor, fcntl.LOCK_EX)
                yield
        finally:
            os.close(descriptor)

    def stage(self) -> tuple[Path, BinaryIO]:
        """Begin a new file, which :meth:`place` or :meth:`discard` takes; it is locked while it is being written."""
        path = self.own / f"new-{uuid.uuid4().hex}"

        def begin() -> BinaryIO:
            file = open(path, "x+b")  # noqa: SIM115 - the caller closes it
            with contextlib.suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file

        return path, self.within(self.own, begin)

    def within(self, folder: Path, write: Callable[[], _T]) -> _T:
        """Write something into a folder, which is made; again if it was empty and somebody who deletes took it away.

        Raises:
            ServiceError: a link leads out of the bucket.
            FileExistsError, NotADirectoryError: a file is in the way.
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
                # Also where it was there, and is not any more.
                if any(os.path.lexists(each) and not each.is_dir() for each in (folder, *folder.parents)):
                    raise
        raise ServiceError(
            "SlowDown",
            "The object was not written: another process removes the object's folders as fast as they are made. "
            "Try again.",
            503,
        )

    def place(self, staged: Path, key: str) -> None:
        """Make a staged file the object of a key, at once. To be called while the bucket is :meth:`locked`.

        Raises:
            ServiceError: a link leads out of the bucket.
            OSError: it cannot be written.
        """
        path = self._file(key)
        if path is None or not self._place_file(staged, path):
            self._put_apart(staged, key)
        else:
            self._remove_apart(key)

    def discard(self, staged: Path) -> None:
        """Remove what was staged, if it is still there."""
        with contextlib.suppress(FileNotFoundError):
            staged.unlink()
        self.tidy()

    def delete(self, key: str) -> None:
        """Remove an object, if there is one, and folders that are empty then. To be called while :meth:`locked`."""
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
        """Remove our own folders if there is nothing in them."""
        for own in (self._apart, self.uploads, self.own):
            _remove_empty(own)

    def sweep(self) -> None:
        """Remove what was left half written or half removed by servers that were killed."""
        for path in self.own.glob("new-*"):
            if _STAGED.fullmatch(path.name):
                with contextlib.suppress(OSError), open(path, "r+b") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # whoever writes it has the lock
                    path.unlink()
        for path in self._apart.glob("*"):
            if not _is_file(path / "object") and _age(path) > _ABANDONED:
                shutil.rmtree(path, ignore_errors=True)
        for path in self.uploads.glob("*"):
            if not _is_file(path / "upload.json") and _age(path) > _ABANDONED:
                shutil.rmtree(path, ignore_errors=True)
        self.tidy()

    def walk(self, prefix: str = "", after: str = "", delimiter: str = "") -> Iterator[tuple[str, bool]]:
        """Return the keys with a prefix behind another, in S3's order, which is that of their UTF-8.

        Args:
            prefix: How they begin.
            after: They and what they are rolled up to sort behind this.
            delimiter: Where they go on with it behind the prefix, all are rolled up to what stands before and the
                delimiter.

        Returns:
            Pairs: a key or what keys are rolled up to, and whether it is the latter.
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
        """The file of the key's name; None if there can be none."""
        parts = key.split("/")
        if any(part in ("", ".", "..") or "\0" in part or part.startswith(OWN) for part in parts):
            return None
        if any(len(os.fsencode(part)) > _NAME_LIMIT for part in parts):
            return None
        return self.folder.joinpath(*parts)

    def _place_apart(self, key: str) -> Path:
        """The folder of an object that cannot be a file of its key's name."""
        return self._apart / hashlib.sha256(key.encode("utf-8")).hexdigest()

    def _is_inside(self, folder: Path) -> bool:
        """Whether no link stands between the bucket and a folder, as far as that is there."""
        return os.path.realpath(folder) == os.fspath(folder)

    def _place_file(self, staged: Path, path: Path) -> bool:
        """Move it there; return False if there can be no such file beside others, or on this file system."""
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
            (place / "object").unlink()  # the first: without it nothing is there
        shutil.rmtree(place, ignore_errors=True)

    def _files_below(self, folder: Path, base: str, prefix: str, after: str, delimiter: str) -> Iterator[str]:
        """The keys of a folder's files, sorted; one for each folder that is rolled up."""
        found = []
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
            for entry in entries:
                key = base + entry.name
                if entry.name.startswith(OWN) or not _is_text(key):
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
    """Move a file there at once, with what is noted of it; also to another file system that is mounted there."""
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
    """How long something has not changed, in seconds; 0 if it is gone."""
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except (OSError, ValueError):
        return False


def _is_text(name: str) -> bool:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _remove_empty(folder: Path) -> bool:
    try:
        folder.rmdir()
    except OSError:
        return False
    return True
