"""Copy a folder of code: quickly for small trees, and without links that point outside the copy."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

_CHUNK = 1 << 20
#: The bytes that the kernel copies in one call, so that progress can be reported between calls.
_RANGE = 64 << 20
#: The errors by which the kernel refuses to copy by itself: two file systems, or one without support.
_NO_RANGE = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF})
#: ``FICLONE`` of ``<linux/fs.h>``.
_FICLONE = 0x40049409
#: The largest depth of nested folders, as for an archive of code.
_MAX_DEPTH = 128


class CopyError(ValueError):
    """Error for an entry that cannot be copied; the message names it."""


def copy_tree(source: Path, target: Path) -> None:
    """Copy the entries of ``source`` into ``target``, with modes and times.

    Links that stay inside ``source`` stay links, and are relative in the copy. Links out of it are followed, as
    SageMaker's SDK does when it packs a ``source_dir``.

    Args:
        source: The folder.
        target: The folder for the copies, which is created if missing.

    Raises:
        CopyError: an entry is neither a file, a folder nor a link, a link is broken or circular, or folders are
            nested too deeply.
        OSError: reading or writing failed.
    """
    root = os.path.realpath(source)
    _copy_folder(root, os.fspath(target), root, (root,))


def copy_file(
    source: str, target: str, *, mode: int = stat.S_IRUSR | stat.S_IWUSR, advance: Callable[[int], None] | None = None
) -> None:
    """Copy a file's content, mode and times; an existing file or link ``target`` is replaced.

    Args:
        source: The file.
        target: Its copy.
        mode: Permission bits that are added to the file's own.
        advance: Called with the number of bytes copied since the last call.
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
    """Return whether the file system copies to ``target`` by sharing blocks, which takes no time and no space."""
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
    """Copy everything but holes within the kernel, which shares blocks between the files if it can (btrfs, XFS).

    Yields:
        The number of bytes copied since the last value.
    """
    position = 0
    while position < size:
        try:
            data = os.lseek(reading, position, os.SEEK_DATA)
            hole = os.lseek(reading, data, os.SEEK_HOLE)
        except OSError as error:
            # The rest is a hole, or the file system does not report holes.
            data, hole = (size, size) if error.errno == errno.ENXIO else (position, size)
        yield data - position
        os.lseek(reading, data, os.SEEK_SET)
        os.lseek(writing, data, os.SEEK_SET)
        yield from _copy_range(reading, writing, hole - data)
        position = hole
    # Copy what was added since, or the whole of a file whose size the file system does not know.
    os.lseek(reading, size, os.SEEK_SET)
    os.lseek(writing, size, os.SEEK_SET)
    yield from _copy_range(reading, writing, sys.maxsize)
    if os.fstat(writing).st_size < size <= os.fstat(reading).st_size:
        os.ftruncate(writing, size)  # the file ends in a hole


def _copy_range(reading: int, writing: int, count: int) -> Iterator[int]:
    """Copy ``count`` bytes from the current positions, or up to the end."""
    try:
        while count and (copied := os.copy_file_range(reading, writing, min(_RANGE, count))):
            count -= copied
            yield copied
    except OSError as error:
        if error.errno not in _NO_RANGE:
            raise
    # Copy the rest, which is everything if the kernel cannot copy these files.
    while count and (chunk := os.read(reading, min(_CHUNK, count))):
        view = memoryview(chunk)
        while view:
            view = view[os.write(writing, view) :]
        count -= len(chunk)
        yield len(chunk)


def _copy_folder(source: str, target: str, root: str, above: tuple[str, ...]) -> None:
    """Copy a folder's entries.

    Args:
        source: The folder; its path has no links.
        target: Its copy.
        root: The folder that links must stay in to stay links.
        above: The folders that are being copied, ending with ``source``.
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
    """Return a relative target for ``link`` if it stays inside ``root``; else None.

    A broken link stays inside if the path that it names is inside.

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
    """Return whether a relative link leaves the root on its way.

    Such a link may come back by the root's name, which a copy does not have.

    Args:
        target: The link's target, relative to ``folder``.
        folder: The link's folder, relative to the root.
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
