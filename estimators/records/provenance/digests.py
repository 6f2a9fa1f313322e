"""Compute digests of local channels. A digest shows later whether the data is still the data that a job was trained on.

A digest covers the name and the size of each file, and its content. At most 512 MiB are read for each job, because a
disk cannot read a large data set within the time of a training. For the other files, the modification time is used
instead of the content.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

#: The maximum number of bytes of content that are read for a job, over all channels.
HASH_LIMIT = 512 << 20
#: The maximum number of files of a channel that are listed individually, and the maximum number of files that a digest
#: covers.
ENTRIES_LIMIT = 2_000
FILES_LIMIT = 200_000
_BLOCK = 1 << 20


class Digester:
    """A calculator of digests for the channels of one job.

    For all channels together, at most ``limit`` bytes of content are read.
    """

    def __init__(self, *, limit: int = HASH_LIMIT) -> None:
        self._room = limit

    def digest(self, path: Path) -> dict[str, Any]:
        """Return the facts about one channel, which is a folder or a single file.

        Returns:
            The dict that :mod:`estimators.records.provenance` describes under ``data``. ``complete`` is False if the
            channel has more than :data:`FILES_LIMIT` files, or if the contents of some files were not read.

        Raises:
            OSError: ``path`` does not exist or cannot be read.
        """
        root = path.resolve(strict=True)
        total = hashlib.blake2b(digest_size=16)
        entries: list[list[Any]] = []
        count = size = hashed = 0
        complete = True
        for name, file in _files(root):
            if count >= FILES_LIMIT:
                complete = False
                break
            try:
                stat = file.stat()
            except OSError:
                complete = False  # removed meanwhile, or a dangling link
                continue
            content: str | None = None
            if stat.st_size <= self._room:
                self._room -= stat.st_size
                content = content_digest(file)
            hashed += stat.st_size if content is not None else 0
            complete = complete and content is not None
            count += 1
            size += stat.st_size
            if len(entries) < ENTRIES_LIMIT:
                entries.append([name, stat.st_size, stat.st_mtime_ns, content])
            # If the content was not read, use the modification time instead.
            total.update(f"{name}\0{stat.st_size}\0{content or stat.st_mtime_ns}\n".encode("utf-8", "surrogateescape"))
        return {
            "path": str(root),
            "files": count,
            "bytes": size,
            "digest": total.hexdigest(),
            "hashed_bytes": hashed,
            "complete": complete,
            "entries": entries,
        }


def _files(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield the relative name and the path of every regular file below ``root``.

    The order depends only on the names.
    """
    if root.is_file():
        yield root.name, root
        return
    for folder, folders, names in os.walk(root, followlinks=False):
        folders.sort()
        for name in sorted(names):
            file = Path(folder, name)
            if file.is_file():  # not FIFOs or sockets: reading them would block
                yield os.path.relpath(file, root), file


def content_digest(file: Path) -> str | None:
    """Return the digest of a file's content. Return None if the file cannot be read."""
    digest = hashlib.blake2b(digest_size=16)
    try:
        with file.open("rb") as stream:
            while block := stream.read(_BLOCK):
                digest.update(block)
    except OSError:
        return None
    return digest.hexdigest()
