"""Compute digests of local channels. A digest identifies the data that a job was trained on.

The name, size and modification time of every file are recorded. Contents are read up to a limit, because a data set may
be larger than what a disk can read during a training.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

#: The number of bytes per job, over all channels, whose contents are hashed.
HASH_LIMIT = 512 << 20
#: The number of files of a channel that are listed one by one. The digest covers up to :data:`FILES_LIMIT` files.
ENTRIES_LIMIT = 2_000
FILES_LIMIT = 200_000
_BLOCK = 1 << 20


class Digester:
    """Computes digests of folders. At most ``limit`` bytes are read in total."""

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
            # Without the content, the modification time represents it.
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
    """Yield every regular file below ``root`` with its relative name, always in the same order."""
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
