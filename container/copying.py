"""Copying a folder of code: quickly for small trees, and without links that point out of the copy."""

from __future__ import annotations

import os
import stat
from pathlib import Path

_CHUNK = 1 << 20


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
        CopyError: an entry is neither a file, a folder nor a link, or a link leads nowhere or in a circle.
        OSError: reading or writing failed.
    """
    root = os.path.realpath(source)
    _copy_folder(root, os.fspath(target), root, (root,))


def copy_file(source: str, target: str) -> None:
    """Copy one file's content, mode and times; an existing file or link ``target`` is replaced."""
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
            while chunk := os.read(reading, _CHUNK):
                view = memoryview(chunk)
                while view:
                    view = view[os.write(writing, view) :]
            os.fchmod(writing, stat.S_IMODE(status.st_mode) & 0o777 | stat.S_IRUSR | stat.S_IWUSR)
            os.utime(writing, ns=(status.st_atime_ns, status.st_mtime_ns))
        finally:
            os.close(writing)
    finally:
        os.close(reading)


def _copy_folder(source: str, target: str, root: str, above: tuple[str, ...]) -> None:
    """Copy a folder's entries.

    Args:
        source: The folder, without links in its path.
        target: Its copy.
        root: The folder that links must stay in to stay links.
        above: The folders that are being copied, ``source`` the last.
    """
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
            raise CopyError(f"{link} links to {outside}, which contains it; remove the link.")
        _copy_folder(outside, copy, outside, (*above, outside))
    elif os.path.isfile(outside):
        copy_file(outside, copy)
    else:
        raise CopyError(f"{link} links to {os.readlink(link)}, which does not exist; remove or repair the link.")


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
    """Whether a relative link leaves the root on its way; it may come back by the root's name, which a copy has not.

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
