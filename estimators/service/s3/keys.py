"""Where an object lies, and which objects there are.

An object is the file of its key's name in its bucket's folder. Not all keys can be such files: ``a`` and ``a/b`` not
beside each other, ``in/``, ``a//b``, ``../x`` and names of more than 255 bytes never. These lie in a folder of our own
in the bucket, each in a folder named by the hash of its key, which is kept beside it. A file always comes first:
whoever puts one where such an object was has put another object.
"""

from __future__ import annotations

import contextlib
import hashlib
import heapq
import os
import shutil
import stat
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
#: A staged file that has not changed for so long is a dead server's, in seconds.
_ABANDONED = 24 * 3600.0

_T = TypeVar("_T")


def bucket_of(folder: Path, name: str) -> Bucket | None:
    """Return a bucket by its name; None if there is none. A link is none."""
    if not name or name.startswith(".") or "/" in name or "\0" in name or len(os.fsencode(name)) > _NAME_LIMIT:
        return None
    place = folder / name
    return None if place.is_symlink() or not place.is_dir() else Bucket(place)


def behind(prefix: str) -> str:
    """Return what sorts behind all keys with a prefix."""
    return prefix + _LAST


class Bucket:
    """A bucket's objects as files.

    Args:
        folder: The bucket's folder, which is no link.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(os.path.realpath(folder))
        self.own = self.folder / OWN

    def find(self, key: str) -> Path | None:
        """Return the file that an object is; None if there is no such object. Links are no objects."""
        path = self._file(key)
        if path is not None and _is_file(path) and self._is_inside(path):
            return path
        path = self._kept(key) / "object"
        return path if _is_file(path) else None

    def stage(self) -> tuple[Path, BinaryIO]:
        """Begin a new file, which :meth:`place` or :meth:`discard` takes."""
        path = self.own / f"new-{uuid.uuid4().hex}"
        return path, self.within(self.own, lambda: open(path, "x+b"))

    def within(self, folder: Path, write: Callable[[], _T]) -> _T:
        """Write something into a folder, which is made; again if it was empty and somebody who deletes took it away."""
        for _ in range(_TRIES):
            folder.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                return write()
        raise ServiceError("SlowDown", "Folders on the way to the object vanish again and again.", 503)

    def place(self, staged: Path, key: str) -> None:
        """Make a staged file the object of a key, at once.

        Raises:
            ServiceError: a link leads out of the bucket.
            OSError: it cannot be written.
        """
        path = self._file(key)
        if path is None or not self._place_file(staged, path):
            self._keep(staged, key)
        else:
            shutil.rmtree(self._kept(key), ignore_errors=True)

    def discard(self, staged: Path) -> None:
        """Remove what was staged, if it is still there."""
        with contextlib.suppress(FileNotFoundError):
            staged.unlink()
        self.tidy()

    def delete(self, key: str) -> None:
        """Remove an object, if there is one, and the folders that are empty without it."""
        path = self._file(key)
        if path is not None and _is_file(path) and self._is_inside(path):
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
            for parent in path.parents:
                if parent == self.folder or not _remove_empty(parent):
                    break
        shutil.rmtree(self._kept(key), ignore_errors=True)
        self.tidy()

    def tidy(self) -> None:
        """Remove our own folder if there is nothing in it."""
        _remove_empty(self.own / "keys")
        _remove_empty(self.own / "uploads")
        _remove_empty(self.own)

    def sweep(self) -> None:
        """Remove staged files that nobody writes any more."""
        for path in self.own.glob("new-*"):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > _ABANDONED:
                    path.unlink()
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
        for key in heapq.merge(files, self._kept_keys(prefix, after)):
            end = key.find(delimiter, len(prefix)) if delimiter else -1
            if end < 0:
                yield key, False
            elif (rolled := key[: end + len(delimiter)]) not in (last, after):
                last = rolled
                yield rolled, True

    def _file(self, key: str) -> Path | None:
        """The file of the key's name; None if there can be none."""
        parts = key.split("/")
        if any(part in ("", ".", "..") or "\0" in part for part in parts) or parts[0] == OWN:
            return None
        if any(len(os.fsencode(part)) > _NAME_LIMIT for part in parts):
            return None
        return self.folder.joinpath(*parts)

    def _kept(self, key: str) -> Path:
        return self.own / "keys" / hashlib.sha256(key.encode("utf-8")).hexdigest()

    def _is_inside(self, path: Path) -> bool:
        """Whether no link stands between the bucket and the file."""
        return os.path.realpath(path.parent) == os.fspath(path.parent)

    def _place_file(self, staged: Path, path: Path) -> bool:
        """Move it there; return False if files and folders are in the way."""

        def move() -> None:
            if not self._is_inside(path):
                raise denied("A symbolic link of the bucket's folder stands in the way; links are not followed.")
            os.replace(staged, path)

        try:
            self.within(path.parent, move)
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            return False
        return True

    def _keep(self, staged: Path, key: str) -> None:
        """Move it to where it needs no name of its own."""
        kept = self._kept(key)

        def move() -> None:
            (kept / "key").write_text(key, encoding="utf-8")
            os.replace(staged, kept / "object")

        self.within(kept, move)

    def _files_below(self, folder: Path, base: str, prefix: str, after: str, delimiter: str) -> Iterator[str]:
        """The keys of a folder's files, sorted; one for each folder that is rolled up."""
        found = []
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
            for entry in entries:
                key = base + entry.name
                if key == OWN or not _is_text(key):
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

    def _kept_keys(self, prefix: str, after: str) -> list[str]:
        found = []
        with contextlib.suppress(FileNotFoundError), os.scandir(self.own / "keys") as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    key = Path(entry.path, "key").read_text(encoding="utf-8")
                    if key.startswith(prefix) and key > after and self.find(key) == Path(entry.path, "object"):
                        found.append(key)
        return sorted(found)


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
