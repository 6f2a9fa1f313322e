"""List the files of a checkpoint folder that must be synchronized with S3 or with the job's folder on the supervisor's
machine.
"""

from __future__ import annotations

import os
import re
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path

#: Pattern of the names of the Checkpointer's folders. The pattern is defined here, because
#: ``container.checkpoint.store`` needs numpy.
CHECKPOINT = re.compile(r"checkpoint-\d+-step-\d+")
#: The file that the Checkpointer writes last; a checkpoint without it is incomplete.
MANIFEST = "manifest.json"
#: Pattern of the names of files that are not synchronized: temporary or private files of the Checkpointer, and of the
#: processes that transfer checkpoints.
PASSING = re.compile(r"\.((staging|trash)-checkpoint-.+|lock|.+\.partial|[^.].*\.[0-9a-f]{8}|nfs[0-9a-f]+)")


def files_below(folder: Path) -> dict[str, tuple[int, int]]:
    """Return the size and the modification time in nanoseconds of each synchronized file below a folder, by the file's
    relative path.

    For a link, the size is a digest of the link's target, and the time is 0. For an empty folder, the name ends in a
    slash, and both numbers are 0.
    """
    found = walk(str(folder), follow=False)
    return {name: facts(folder / name, status) for name, status in found if isinstance(status, os.stat_result)}


def walk(root: str, *, follow: bool) -> Iterator[tuple[str, os.stat_result | OSError | None]]:
    """Find what must be synchronized below a folder: files, links to entries in the folder, and empty folders.

    The names of empty folders end in a slash.

    Args:
        root: The folder.
        follow: Whether links are replaced by their targets. If True, a link to a folder is omitted if the link is
            inside another linked folder.

    Yields:
        The entry's name and status. The status is None for a link whose target is missing or is outside the folder,
        because such a link is not synchronized. For an entry that cannot be read, such as a folder without permission,
        the error takes the place of the status.
    """
    real = os.path.realpath(root)
    waiting = [("", False)]
    while waiting:
        prefix, linked = waiting.pop()
        try:
            with os.scandir(os.path.join(root, prefix)) as scanned:
                entries = list(scanned)
            if prefix and not entries:
                yield prefix, os.lstat(os.path.join(root, prefix))
        except (FileNotFoundError, NotADirectoryError):
            continue  # not created yet, or deleted since it was listed
        except OSError as error:
            yield prefix, error
            continue
        for entry in entries:
            name = prefix + entry.name
            if PASSING.fullmatch(entry.name):
                continue
            try:
                status = entry.stat(follow_symlinks=False)
                if is_link := stat.S_ISLNK(status.st_mode):
                    if not os.path.exists(entry.path) or not os.path.realpath(entry.path).startswith(real + os.sep):
                        yield name, None
                        continue
                    status = entry.stat(follow_symlinks=follow)
                if stat.S_ISDIR(status.st_mode):
                    if not (is_link and linked):
                        waiting.append((f"{name}/", linked or is_link))
                elif stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
                    yield name, status
            except FileNotFoundError:
                continue  # deleted since it was listed
            except OSError as error:
                yield name, error


def facts(path: Path, status: os.stat_result) -> tuple[int, int]:
    """Return two numbers that differ if an entry has changed: those of :func:`files_below`. A transferred copy of the
    entry has the same numbers.
    """
    if stat.S_ISLNK(status.st_mode):
        return zlib.crc32(os.fsencode(target(path))), 0
    return (status.st_size, status.st_mtime_ns) if stat.S_ISREG(status.st_mode) else (0, 0)


def target(link: str | os.PathLike[str]) -> str:
    """Return the path to which a link finally leads, relative to the link's folder."""
    return os.path.relpath(os.path.realpath(link), os.path.realpath(os.path.dirname(link)))
