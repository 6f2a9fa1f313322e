"""Lock a folder of checkpoints for exclusive writing.

The kernel releases the lock when the process that holds it ends for any reason. Forked child processes, such as a data
loader's workers, may run longer, but do not inherit the lock.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
import warnings

from container.checkpoint.errors import CheckpointLockedError
from container.contract import variables

FILE_NAME = ".lock"

#: Time between two attempts to get the lock, in seconds.
_RETRY_S = 0.05

#: Folders that this process writes into, as (process, device, inode). Record locks belong to processes: a second lock
#: in the same process would succeed, and closing its file would release the first lock.
_held: set[tuple[int, int, int]] = set()


class WriterLock:
    """A lock that this process holds on a folder until :meth:`release`.

    Args:
        directory: The folder, which must exist.
        timeout: Maximum number of seconds to wait if another process holds the lock. Waiting helps if that process is
            about to exit.

    Raises:
        CheckpointLockedError: another process, or another Checkpointer of this process, holds the lock.
        OSError: the folder cannot be written.
    """

    def __init__(self, directory: str, timeout: float) -> None:
        status = os.stat(directory)
        self._key = (os.getpid(), status.st_dev, status.st_ino)
        if self._key in _held:
            raise CheckpointLockedError(
                f"this process already has a Checkpointer that writes into {_real(directory)}. Use that "
                "Checkpointer, or close it."
            )
        path = os.path.join(directory, FILE_NAME)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            self._acquire(directory, timeout)
            os.ftruncate(self._fd, 0)
            owner = {
                "pid": os.getpid(),
                "host": socket.gethostname(),
                "job": os.environ.get(variables.JOB_NAME, ""),
            }
            os.pwrite(self._fd, json.dumps(owner).encode(), 0)
        except BaseException:
            os.close(self._fd)
            raise
        _held.add(self._key)

    def release(self) -> None:
        """Release the lock."""
        if self._key in _held:
            _held.discard(self._key)
            os.close(self._fd)

    def _acquire(self, directory: str, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while True:
            try:
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    if error.errno in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
                        warnings.warn(
                            f"the file system of {directory} has no locks ({error.strerror}): nothing prevents a "
                            "second process from writing checkpoints into this folder.",
                            RuntimeWarning,
                            stacklevel=2,
                        )
                        return
                    raise
            if time.monotonic() >= deadline:
                raise CheckpointLockedError(
                    f"{self._owner()} writes checkpoints into {_real(directory)}. Wait for that process or end it, or "
                    "give each training its own directory. In a cluster, pass cluster=…, so that only rank 0 writes. "
                    "If you only read checkpoints, use Checkpointer(directory, read_only=True)."
                )
            time.sleep(_RETRY_S)

    def _owner(self) -> str:
        try:
            values = json.loads(os.pread(self._fd, 4096, 0))
            job = f" of job {values['job']}" if values.get("job") else ""
            return f"process {values['pid']} on {values['host']}{job}"
        except (ValueError, KeyError, TypeError, AttributeError, OSError):
            return "another process"


def _real(directory: str) -> str:
    """Return a folder's path for a message. If the real path differs because of links, include the real path."""
    real = os.path.realpath(directory)
    return directory if real == directory else f"{directory}, which is {real}"
