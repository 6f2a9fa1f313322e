"""Copy a folder of code quickly. No link in the copy points outside the copy."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from container.system.files import write_all

_CHUNK = 1 << 20
#: The bytes that the kernel copies in one call, so that progress can be reported between calls.
_RANGE = 64 << 20
#: The errors of ``copy_file_range`` if the two files are on different file systems, or if their file system does not
#: support the call.
_NO_RANGE = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF})
#: ``FICLONE`` of ``<linux/fs.h>``.
_FICLONE = 0x40049409
#: The largest depth of nested folders, as for an archive of code.
_MAX_DEPTH = 128


class CopyError(ValueError):
    """Error for an entry that cannot be copied. The message names the entry."""


def copy_tree(source: Path, target: Path) -> None:
    """Copy the entries of ``source`` into ``target``, with modes and times.

    A link to a path inside ``source`` stays a link, and is relative in the copy. For a link to a path outside
    ``source``, the file or folder at that path is copied, as SageMaker's SDK does when it packs a ``source_dir``.

    Args:
        source: The folder to copy.
        target: The folder for the copies, which is created if missing.

    Raises:
        CopyError: a link is broken or circular, folders are nested too deeply, or an entry is neither a file, a folder
            nor a link.
        OSError: reading or writing failed.
    """
    root = os.path.realpath(source)
    _copy_folder(root, os.fspath(target), root, (root,))


def copy_file(
    source: str, target: str, *, mode: int = stat.S_IRUSR | stat.S_IWUSR, advance: Callable[[int], None] | None = None
) -> None:
    """Copy a file's content, mode and times. An existing file or link at ``target`` is replaced.

    Args:
        source: The path of the file.
        target: The path of the copy.
        mode: The permission bits that are added to those of the file.
        advance: A function that is called repeatedly with the number of bytes copied since the last call.
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
    """Return whether the file system can copy ``source`` to ``target`` by sharing blocks.

    Such a copy takes no time and no space. ``target`` must not exist. This function creates the file and removes it.
    """
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
    """Copy a file's content, except its holes. The kernel copies the bytes if it can. It shares blocks between the two
    files if the file system supports this (btrfs, XFS).

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
    # Copy data that was appended meanwhile, or the whole file if the file system has reported no size.
    os.lseek(reading, size, os.SEEK_SET)
    os.lseek(writing, size, os.SEEK_SET)
    yield from _copy_range(reading, writing, sys.maxsize)
    if os.fstat(writing).st_size < size <= os.fstat(reading).st_size:
        os.ftruncate(writing, size)  # the file ends in a hole


def _copy_range(reading: int, writing: int, count: int) -> Iterator[int]:
    """Copy ``count`` bytes from the current positions. Stop earlier at the end of the file.

    Yields:
        The number of bytes copied since the last value.
    """
    try:
        while count and (copied := os.copy_file_range(reading, writing, min(_RANGE, count))):
            count -= copied
            yield copied
    except OSError as error:
        if error.errno not in _NO_RANGE:
            raise
    # Copy the rest, which is everything if the kernel cannot copy these files.
    while count and (chunk := os.read(reading, min(_CHUNK, count))):
        write_all(writing, chunk)
        count -= len(chunk)
        yield len(chunk)


def _copy_folder(source: str, target: str, root: str, above: tuple[str, ...]) -> None:
    """Copy a folder's entries.

    Args:
        source: The real path of the folder. No part of this path is a link.
        target: The path of the copy.
        root: The folder within which links stay links.
        above: The paths of the folders that are being copied, from the outermost to ``source``.
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
    """Return a relative target for ``link`` if the link's target is inside ``root``. Otherwise return None.

    The target of a broken link counts as inside if its path is inside ``root``.

    Args:
        link: The path of the link, which is below ``root``.
        root: A folder, as returned by ``os.path.realpath``.
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
    """Return whether the target of a relative link passes through a folder outside the root.

    Such a target may lead back into the root by the root's name. In a copy, the root has a different name, and the link
    would be broken.

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
