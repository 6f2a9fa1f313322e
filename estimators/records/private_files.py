"""Write files that only the user can read, such as job records. If a write fails, raise an error with a remedy."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from container.system import files
from estimators.job.errors import RecordError

#: The environment variable that names the folder of the job records. The default folder is ``~/.fleetfit``.
HOME_VARIABLE = "FLEETFIT_HOME"

#: The disk space that a record reserves, in bytes. The space is freed when the disk is full, so that the job's last
#: status can still be written.
_RESERVE_BYTES = 256 << 10
#: Error numbers -> the command that raises the limit.
_LIMITS = {errno.EMFILE: "ulimit -n", errno.ENFILE: "sysctl fs.file-max", errno.EFBIG: "ulimit -f"}


def open_private(path: Path, flags: int) -> int:
    """Open or create a file that only the user may read. Child processes do not inherit the descriptor."""
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


@contextlib.contextmanager
def explained(path: Path, verb: str) -> Iterator[None]:
    """Convert an OSError, such as a full disk, to a :class:`RecordError` that names the file and a remedy.

    A FileNotFoundError is not converted, because only the caller knows what a missing file means.

    Args:
        path: The file that the block reads or writes.
        verb: What the block does with the file, for the error message, such as ``write``.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        text = error.strerror or str(error)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            remedy = "Free some space (`fleetfit clean --free 5G` removes the oldest jobs)"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            remedy = "Make the folder writable for you"
        elif error.errno in _LIMITS:
            limit = _LIMITS[error.errno]
            raise RecordError(f"cannot {verb} {path}: {text}. Raise the limit (`{limit}`).") from error
        else:
            remedy = "Check the folder"
        raise RecordError(
            f"cannot {verb} {path}: {text}. {remedy}, or set {HOME_VARIABLE} to a folder on another disk."
        ) from error


def reserve(path: Path) -> None:
    """Create a file that reserves disk space. :func:`give_back` frees the space.

    On a file system that cannot reserve space, the file stays empty.

    Raises:
        OSError: the disk is full.
    """
    descriptor = open_private(path, os.O_WRONLY | os.O_CREAT)
    try:
        os.posix_fallocate(descriptor, 0, _RESERVE_BYTES)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        # This file system cannot reserve space. The record also works without reserved space.
    finally:
        os.close(descriptor)


def give_back(reserved: Path) -> bool:
    """Free half of the reserved space.

    Keep the other half for another call, because another program may use the freed space first.

    Returns:
        Whether any space was freed. False if no reserved space was left.
    """
    try:
        size = reserved.stat().st_size
        if size < 8192:
            reserved.unlink()
        else:
            os.truncate(reserved, size // 2)
    except FileNotFoundError:
        return False
    return True


def is_full(error: BaseException | None) -> bool:
    """Return whether an error or one of its causes means that the disk is full."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__
    return False


def replace_json(path: Path, value: Any, reserved: Path) -> None:
    """Replace a JSON file atomically. Use the reserved space if the disk is full.

    Args:
        path: The path of the file.
        value: The new content of the file.
        reserved: The file that :func:`reserve` has created.

    Raises:
        RecordError: the file cannot be written.
    """
    data = json.dumps(value, indent=1).encode() + b"\n"
    with explained(path, "write"):
        while True:
            try:
                files.replace(path, data)
                return
            except OSError as error:
                if not is_full(error) or not give_back(reserved):
                    raise


def tail(path: Path) -> str:
    """Return the last 4,000 bytes of a file as text. Return an empty text if the file cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 4000))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""
