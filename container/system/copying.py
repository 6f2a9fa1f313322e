"""Copy a folder of code: quickly for small trees, and without links that point out of the copy."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

_CHUNK = 1 << 20
#: So much at once in the kernel, so that progress is seen.
_RANGE = 64 << 20
#: What the kernel says of files that it cannot copy by itself: of two file systems, of one without it.
_NO_RANGE = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF})
#: ``FICLONE`` of ``<linux/fs.h>``.
_FICLONE = 0x40049409
#: So many folders may be in each other, as in an archive of code.
_MAX_DEPTH = 128


class CopyError(ValueError):
    """Something in the folder cannot be copied; the message names it."""


def copy_tree(source: Path, target: Path) -> None:
    """Copy what is in ``source`` into ``target``, with modes and times.

    Links that stay inside ``source`` stay links, and are relative in the copy. Links out of it are followed, as
    SageMaker's SDK does when it packs a ``source_dir``.

    Args:
        source: The folder.
        target: Where its entries go; made if it does not exist.

    Raises:
        CopyError: an entry is neither a file, a folder nor a link, a link leads nowhere or in a circle, or folders are
            nested too deeply.
        OSError: reading or writing failed.
    """
    root = os.path.realpath(source)
    _copy_folder(root, os.fspath(target), root, (root,))


def copy_file(
    source: str, target: str, *, mode: int = stat.S_IRUSR | stat.S_IWUSR, advance: Callable[[int], None] | None = None
) -> None:
    """Copy one file's content, mode and times; an existing file or link ``target`` is replaced.

    Args:
        source: The file.
        target: Its copy.
        mode: What the copy's mode has beside the file's own.
        advance: Takes how many bytes more have been copied.
    """
    reading = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        status = os.fstat(reading)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            writing = os.open(target, flags, 0o600)
        except FileExistsError:
            os.unlink(target)
            writing = os.open(target, flags, 0o600)
        try:
            for copied in _copy_content(reading, writing, status.st_size):
                if advance is not None:
                    advance(copied)
            os.fchmod(writing, stat.S_IMODE(status.st_mode) & 0o777 | mode)
            os.utime(writing, ns=(status.st_atime_ns, status.st_mtime_ns))
        finally:
            os.close(writing)
    finally:
        os.close(reading)


def clones(source: str, target: str) -> bool:
    """Return whether the file system makes copies at ``target`` by sharing blocks, in no time and no space."""
    reading = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        writing = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.ioctl(writing, _FICLONE, reading)
            return True
        except OSError:
            return False
        finally:
            os.close(writing)
            os.unlink(target)
    finally:
        os.close(reading)


def _copy_content(reading: int, writing: int, size: int) -> Iterator[int]:
    """Copy what is not a hole, within the kernel: it lets the two share their blocks where it can (btrfs, XFS).

    Yields how many bytes more have been copied.
    """
    position = 0
    while position < size:
        try:
            data = os.lseek(reading, position, os.SEEK_DATA)
            hole = os.lseek(reading, data, os.SEEK_HOLE)
        except OSError as error:
            # There is nothing but a hole from here on; or the file system knows no holes.
            data, hole = (size, size) if error.errno == errno.ENXIO else (position, size)
        yield data - position
        os.lseek(reading, data, os.SEEK_SET)
        os.lseek(writing, data, os.SEEK_SET)
        yield from _copy_range(reading, writing, hole - data)
        position = hole
    # What has come since; also all of a file whose size the file system does not know.
    os.lseek(reading, size, os.SEEK_SET)
    os.lseek(writing, size, os.SEEK_SET)
    yield from _copy_range(reading, writing, sys.maxsize)
    if os.fstat(writing).st_size < size <= os.fstat(reading).st_size:
        os.ftruncate(writing, size)  # it ends in a hole


def _copy_range(reading: int, writing: int, count: int) -> Iterator[int]:
    """Copy so many bytes from where both are, or up to the end."""
    try:
        while count and (copied := os.copy_file_range(reading, writing, min(_RANGE, count))):
            count -= copied
            yield copied
    except OSError as error:
        if error.errno not in _NO_RANGE:
            raise
    # The rest: all of it where the kernel has no such copy for these files.
    while count and (chunk := os.read(reading, min(_CHUNK, count))):
        view = memoryview(chunk)
        while view:
            view = view[os.write(writing, view) :]
        count -= len(chunk)
        yield len(chunk)


def _copy_folder(source: str, target: str, root: str, above: tuple[str, ...]) -> None:
    """Copy a folder's entries.

    Args:
        source: The folder, without links in its path.
        target: Its copy.
        root: The folder that links must stay in to stay links.
        above: The folders that are being copied, ``source`` the last.
    """
    if len(above) > _MAX_DEPTH:
        raise CopyError(f"{above[0]} has folders nested more than {_MAX_DEPTH} deep: {source[:200]}…")
    os.makedirs(target, exist_ok=True)
    with os.scandir(source) as entries:
        for entry in entries:
            copy = os.path.join(target, entry.name)
            if entry.is_symlink():
                _copy_link(entry.path, copy, root, above)
            elif entry.is_dir():
                _copy_folder(entry.path, copy, root, (*above, entry.path))
            elif entry.is_file():
                copy_file(entry.path, copy)
            else:
                raise CopyError(f"{entry.path} is a pipe, socket or device; it cannot be part of a job's code.")


def _copy_link(link: str, copy: str, root: str, above: tuple[str, ...]) -> None:
    inside = link_within(link, root)
    if inside is not None:
        if os.path.lexists(copy):
            os.unlink(copy)
        os.symlink(inside, copy)
        return
    outside = os.path.realpath(link)
    if os.path.isdir(outside):
        if outside in above or root.startswith(outside.rstrip("/") + "/"):
            raise CopyError(f"{link} links to {outside}, a folder that contains the link. Remove the link.")
        _copy_folder(outside, copy, outside, (*above, outside))
    elif os.path.isfile(outside):
        copy_file(outside, copy)
    else:
        raise CopyError(f"{link} links to {os.readlink(link)}, which does not exist. Remove or repair the link.")


def link_within(link: str, root: str) -> str | None:
    """Return a relative target for ``link`` if it stays inside ``root``, else None.

    A link that leads nowhere stays inside if the path that it names would.

    Args:
        link: Path of the link, under ``root``.
        root: A folder, as ``os.path.realpath`` gives it.
    """
    folder = os.path.realpath(os.path.dirname(link))
    target = os.readlink(link)
    resolved = os.path.realpath(os.path.join(folder, target))
    if resolved != root and not resolved.startswith(root.rstrip("/") + "/"):
        return None
    if os.path.isabs(target) or _climbs_out(target, os.path.relpath(folder, root)):
        return os.path.relpath(resolved, folder)
    return target


def _climbs_out(target: str, folder: str) -> bool:
    """Return whether a relative link leaves the root on its way, even if it comes back by the root's name, which a copy
    does not have.

    Args:
        target: Where the link leads, from ``folder``.
        folder: The link's folder, from the root.
    """
    depth = 0 if folder == "." else folder.count("/") + 1
    for part in target.split("/"):
        if part == "..":
            depth -= 1
            if depth < 0:
                return True
        elif part not in ("", "."):
            depth += 1
    return False
