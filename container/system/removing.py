"""Remove a folder with all files and folders that a script may have created in it."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
from collections.abc import Iterator

#: How often to try to remove a folder. A try fails if another process, which removes the same folder, moves nested
#: folders into it at that moment.
_TRIES = 5


def remove_tree(path: str | os.PathLike[str], *, ignore_errors: bool = False) -> None:
    """Remove a folder and all entries below it, at any depth. Links are removed, not followed.

    Two processes may remove the same folder at once. For example, the remover of a job's containers and the job's
    supervisor both remove the job's private folder.

    ``shutil.rmtree`` calls itself for each level and keeps a descriptor open for each level. With a thousand nested
    folders, ``shutil.rmtree`` therefore fails. Here each nested folder is first moved to the top folder, so that no
    path is long.

    Args:
        path: The folder.
        ignore_errors: Whether to suppress all errors. In both cases, as many entries as possible are removed.

    Raises:
        OSError: an entry could not be removed, or the path is not a folder. In the first case, all other entries are
            removed.
    """
    for again in reversed(range(_TRIES)):
        try:
            _Removal(os.fspath(path)).run()
            return
        except FileNotFoundError:
            if again == _TRIES - 1 and not ignore_errors:
                raise
            return  # another process has removed the rest
        except OSError as error:
            if error.errno != errno.ENOTEMPTY or not again:
                if not ignore_errors:
                    raise
                return


class _Removal:
    def __init__(self, path: str) -> None:
        self._path = path
        self._numbers = itertools.count()
        self._mark = f".removed-{os.urandom(6).hex()}-"
        self._error: OSError | None = None

    def run(self) -> None:
        top = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            waiting = self._empty(top, top)
            while waiting:
                name = waiting.pop()
                with self._noted(name):
                    folder = self._open(name, top)
                    try:
                        waiting += self._empty(folder, top)
                    finally:
                        os.close(folder)
                    os.rmdir(name, dir_fd=top)
        finally:
            os.close(top)
        if self._error is not None:
            raise self._error
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(self._path)

    def _empty(self, folder: int, top: int) -> list[str]:
        """Remove a folder's files, and move its subfolders to the top folder.

        Returns:
            The names of the subfolders in the top folder.
        """
        with os.scandir(folder) as entries:
            found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        moved: list[str] = []
        for name, is_folder in found:
            with self._noted(name):
                if not is_folder:
                    os.unlink(name, dir_fd=folder)
                elif folder == top:
                    moved.append(name)
                else:
                    target = f"{self._mark}{next(self._numbers)}"
                    self._move(name, folder, target, top)
                    moved.append(target)
        return moved

    def _move(self, name: str, folder: int, target: str, top: int) -> None:
        try:
            os.rename(name, target, src_dir_fd=folder, dst_dir_fd=top)
        except PermissionError:  # a folder without write permission cannot be moved
            os.chmod(name, stat.S_IRWXU, dir_fd=folder)
            os.rename(name, target, src_dir_fd=folder, dst_dir_fd=top)

    def _open(self, name: str, top: int) -> int:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        with contextlib.suppress(OSError):
            if stat.S_IMODE(os.stat(name, dir_fd=top, follow_symlinks=False).st_mode) & stat.S_IRWXU != stat.S_IRWXU:
                os.chmod(name, stat.S_IRWXU, dir_fd=top)
        return os.open(name, flags, dir_fd=top)

    @contextlib.contextmanager
    def _noted(self, name: str) -> Iterator[None]:
        """Suppress errors in a ``with`` block, and record the first one, which :meth:`run` raises at its end.

        The error for a missing entry is not recorded, because another process may have removed the entry.

        Args:
            name: The name of the entry that the block handles, for the error message.
        """
        try:
            yield
        except FileNotFoundError:
            pass
        except OSError as error:
            self._error = self._error or OSError(error.errno, error.strerror, os.path.join(self._path, name))
