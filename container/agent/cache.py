"""The cache of downloaded S3 objects, so that the next run on the same data starts at once.

An entry is named by URI, ETag and size, so what changed is another entry. It appears whole, by a rename; whoever
downloads it holds a lock, so two jobs at once download it once. Trees get copies: scripts may write into theirs.

The folder is bounded (``FLEETFIT_DATA_CACHE_BYTES``, 20 GiB): the entries that were not used for longest go first.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import os
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from container.agent.sources.base import DataObject
from container.contract.errors import AgentError
from container.system.files import cache_root

#: Overrides the bound.
LIMIT = "FLEETFIT_DATA_CACHE_BYTES"

_DEFAULT_LIMIT = 20 << 30
_PARTIAL = ".part"
#: Entries carry this time: one that has another was written to through a link in a job's tree.
_TIME_NS = 1_000_000_000 * 10**9
#: A download that nobody continued for this long is given up, in seconds.
_ABANDONED_S = 7 * 86400
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def folder() -> Path:
    """Return ``$FLEETFIT_CACHE/data``, or ``~/.cache/fleetfit/data``."""
    return cache_root() / "data"


def limit() -> int:
    """Return the most bytes that are kept.

    Raises:
        AgentError: the variable is not a size.
    """
    text = os.environ.get(LIMIT, "")
    if not text:
        return _DEFAULT_LIMIT
    match = re.fullmatch(r"(\d+)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise AgentError(
            f"{LIMIT}={text!r} is not a size: write a number of bytes, or a number with K, M, G or T, such as 50G."
        )
    return int(match[1]) * _UNITS[match[2].upper()]


@dataclasses.dataclass(frozen=True)
class CacheEntry:
    """The place of one object's content.

    Attributes:
        item: The object.
        path: Its file; exists when it is complete.
    """

    item: DataObject
    path: Path

    @property
    def partial(self) -> Path:
        """The file that it is downloaded to."""
        return self.path.with_name(self.path.name + _PARTIAL)

    def complete(self) -> bool:
        """Return whether the object is there, whole and unchanged, and mark it as used."""
        try:
            status = self.path.stat()
        except OSError:
            return False
        if status.st_size != self.item.size or status.st_mtime_ns != _TIME_NS:
            return False
        with contextlib.suppress(OSError):
            os.utime(self.path, ns=(time.time_ns(), _TIME_NS))
        return True

    def finish(self) -> None:
        """Make the partial file the entry."""
        os.chmod(self.partial, 0o444)  # a script that opens it for writing in its tree would change it here
        os.utime(self.partial, ns=(time.time_ns(), _TIME_NS))
        os.replace(self.partial, self.path)


def entry(item: DataObject, root: Path) -> CacheEntry | None:
    """Return the entry of an object; None for one without an ETag, whose changes could not be noticed."""
    if item.identity is None:
        return None
    digest = hashlib.sha256(f"{item.uri}\n{item.identity}\n{item.size}".encode("utf-8", "surrogateescape")).hexdigest()
    return CacheEntry(item, root / digest[:2] / digest)


@contextlib.contextmanager
def partial(place: CacheEntry) -> Iterator[int | None]:
    """Return the partial file.

    Waits for another process that downloads it. What is in the file stays when the block ends by an error.
    """
    place.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    while True:
        file = os.open(place.partial, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            if place.complete():
                with contextlib.suppress(OSError):
                    if _is(file, place.partial):
                        place.partial.unlink()
                yield None
                return
            if _is(file, place.partial):  # else it was renamed or removed while we waited
                yield file
                return
        finally:
            os.close(file)


def trim(root: Path, keep: int) -> int:
    """Remove what was not used for longest until at most ``keep`` bytes are left; returns how many were freed.

    Entries that are being downloaded are left alone.
    """
    found: list[tuple[int, int, str]] = []
    freed = total = 0
    now = time.time()
    for path in _files(root):
        try:
            status = os.stat(path)
        except OSError:
            continue
        if path.endswith(_PARTIAL):
            if now - status.st_mtime > _ABANDONED_S and _remove_abandoned(path):
                freed += status.st_size
            continue
        found.append((status.st_atime_ns, status.st_size, path))
        total += status.st_size
    for _, size, path in sorted(found):
        if total <= keep:
            break
        with contextlib.suppress(OSError):
            os.unlink(path)
            total -= size
            freed += size
    return freed


def _files(root: Path) -> Iterable[str]:
    for parent, _, names in os.walk(root):
        for name in names:
            yield os.path.join(parent, name)


def _remove_abandoned(path: str) -> bool:
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)
        return True
    except OSError:
        return False  # somebody downloads it
    finally:
        os.close(file)


def _is(file: int, path: Path) -> bool:
    """Return whether a descriptor refers to the file that is at the path now."""
    try:
        here = path.stat()
    except OSError:
        return False
    status = os.fstat(file)
    return (status.st_dev, status.st_ino) == (here.st_dev, here.st_ino)
