"""Cache downloaded S3 objects, so that the next job on the same data does not download them again.

The name of an entry depends on the object's URI, ETag and size. Therefore a changed object gets a new entry. A file is
renamed to the entry's name only when the download is complete. A process holds a lock while it downloads an entry, so
that two simultaneous jobs download the entry only once. Each host's tree gets a copy of an entry, because scripts may
write into their channels. The size of the cache's folder is limited (``FLEETFIT_DATA_CACHE_BYTES``, 20 GiB by default).
The least recently used entries are removed first.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from container.agent.sources.base import DataObject
from container.contract.errors import AgentError
from container.contract.frozen import dataclass
from container.system.files import cache_root

#: Environment variable that overrides the size limit.
LIMIT = "FLEETFIT_DATA_CACHE_BYTES"

_DEFAULT_LIMIT = 20 << 30
_PARTIAL = ".part"
#: The modification time that every entry gets. If a file's time differs, a job has modified the file through a link.
_TIME_NS = 1_000_000_000 * 10**9
#: A partial download without progress for this many seconds is removed.
_ABANDONED_S = 7 * 86400
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def folder() -> Path:
    """Return ``$FLEETFIT_CACHE/data``, or ``~/.cache/fleetfit/data``."""
    return cache_root() / "data"


def limit() -> int:
    """Return the maximum size of the cache in bytes.

    Raises:
        AgentError: the value of ``FLEETFIT_DATA_CACHE_BYTES`` is not a size.
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


@dataclass(frozen=True)
class CacheEntry:
    """A file in the cache for the content of one object.

    Attributes:
        item: The object that is cached.
        path: The path of the file, which exists only when the content is complete.
    """

    item: DataObject
    path: Path

    @property
    def partial(self) -> Path:
        """Return the path of the file that the object is downloaded into."""
        return self.path.with_name(self.path.name + _PARTIAL)

    def received(self) -> int:
        """Return the number of bytes that an interrupted download has already stored in the partial file."""
        with contextlib.suppress(OSError):
            return min(self.partial.stat().st_size, self.item.size)
        return 0

    def complete(self) -> bool:
        """Return whether the entry is complete and unchanged. If so, record the current time as the time of the entry's
        last use.
        """
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
        """Rename the completely downloaded file to the entry's path."""
        os.chmod(self.partial, 0o444)  # otherwise a script could change the entry through a link in its tree
        os.utime(self.partial, ns=(time.time_ns(), _TIME_NS))
        os.replace(self.partial, self.path)


def entry(item: DataObject, root: Path) -> CacheEntry | None:
    """Return the cache entry for an object. The entry's file need not exist yet.

    Return None for an object without an ETag, because changes of such an object cannot be detected.
    """
    if item.identity is None:
        return None
    digest = hashlib.sha256(f"{item.uri}\n{item.identity}\n{item.size}".encode("utf-8", "surrogateescape")).hexdigest()
    return CacheEntry(item, root / digest[:2] / digest)


@contextlib.contextmanager
def partial(place: CacheEntry) -> Iterator[int | None]:
    """Open and lock an entry's partial file, and yield the file's descriptor. Yield None if the entry is complete.

    If another process is downloading the object, wait until that process has finished. If the ``with`` block ends with
    an error, the content of the partial file is kept. The next download then continues after this content.
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
            if _is(file, place.partial):  # otherwise the file was renamed or removed during the wait
                yield file
                return
        finally:
            os.close(file)


def trim(root: Path, keep: int) -> int:
    """Remove the least recently used entries until at most ``keep`` bytes are left. Return the number of freed bytes.

    Partial files are not counted. They are removed only if their download has made no progress for seven days.
    """
    found: list[tuple[int, int, str]] = []
    freed = total = 0
    now = time.time()
    for path in (os.path.join(parent, name) for parent, _, names in os.walk(root) for name in names):
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
        return False  # another process downloads it
    finally:
        os.close(file)


def _is(file: int, path: Path) -> bool:
    """Return whether a descriptor refers to the file that now has this path."""
    try:
        here = path.stat()
    except OSError:
        return False
    status = os.fstat(file)
    return (status.st_dev, status.st_ino) == (here.st_dev, here.st_ino)
