"""Receive checkpoints from hosts that share no files with this machine, while the job runs.

The checkpoints are written into the job's folder on this machine.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path, PurePosixPath
from typing import IO

from container.contract.frames import FrameDecoder
from container.contract.messages import Message
from container.system import saved
from container.system.removing import remove_tree
from estimators.backends.hosts.provider import Output


class IncomingCheckpoints:
    """A receiver of the checkpoints that the agent ``sync out`` on one host sends as messages.

    A checkpoint appears in the folder when all its files are complete. Any other file appears when the file itself is
    complete.

    Args:
        folder: The folder of the job's checkpoints. Only the files that the host sends are written.
        host: The host's name. The folder of incomplete files is named after the host.
        say: A function that receives lines for the log.

    Attributes:
        folder: The folder of the job's checkpoints.
        error: The first error that occurred while messages were handled, or None.
    """

    def __init__(self, folder: Path, host: str, say: Output) -> None:
        self.folder = folder
        self.error: Exception | None = None
        self._staging = folder / f".{host}.partial"
        self._say = say
        self._decoder = FrameDecoder()
        self._file: IO[bytes] | None = None
        self._current: Message = {}
        remove_tree(self._staging, ignore_errors=True)  # left by a supervisor that was killed

    def take(self, data: bytes) -> None:
        """Handle the next bytes from the host. An error is stored in :attr:`error` and not raised."""
        try:
            self.feed(data)
        except (OSError, ValueError) as error:
            self.error = self.error or error

    def feed(self, data: bytes) -> None:
        """Handle the next bytes from the host.

        Raises:
            OSError: a file cannot be written.
            ValueError: a message is invalid.
        """
        for message, body in self._decoder.feed(data):
            operation = message["op"]
            if operation == "file":
                self._begin(message)
            elif operation == "data" and self._file is not None:
                self._file.write(body)
            elif operation in ("whole", "torn") and self._file is not None:
                self._file.close()
                self._file = None
                if operation == "whole":
                    self._put()
            elif operation == "link":
                self._link(str(message["name"]), str(message["target"]))
            elif operation == "folder":
                _make_folder(self.folder, PurePosixPath(_checked(str(message["name"]))))
            elif operation == "gone":
                self._remove(str(message["name"]))
            elif operation == "say":
                self._say(body)

    def close(self) -> None:
        """Stop receiving, and delete incomplete files."""
        if self._file is not None:
            self._file.close()
            self._file = None
        remove_tree(self._staging, ignore_errors=True)

    def _begin(self, message: Message) -> None:
        self._current = message
        self._file = _place(self._staging, _checked(str(message["name"]))).open("wb")

    def _put(self) -> None:
        name = str(self._current["name"])
        staged = self._staging / name
        os.chmod(staged, int(self._current["mode"]) & 0o777 | 0o600)
        os.utime(staged, ns=(int(self._current["time"]), int(self._current["time"])))
        top, _, rest = name.partition("/")
        if rest and saved.CHECKPOINT.fullmatch(top) and not (self.folder / top).exists():
            if rest == saved.MANIFEST:  # the manifest is sent last, so the checkpoint is complete
                os.rename(self._staging / top, self.folder / top)
            return
        os.replace(staged, _place(self.folder, name))

    def _link(self, name: str, target: str) -> None:
        _checked(os.path.normpath(os.path.join(os.path.dirname(name), target)))
        staged = _place(self._staging, _checked(name))
        staged.unlink(missing_ok=True)
        staged.symlink_to(target)
        os.replace(staged, _place(self.folder, name))

    def _remove(self, name: str) -> None:
        path = self.folder / _checked(name)
        with contextlib.suppress(OSError):
            path.rmdir() if name.endswith("/") else path.unlink()
        top = self.folder / PurePosixPath(name).parts[0]
        if top != path and saved.CHECKPOINT.fullmatch(top.name) and not (top / saved.MANIFEST).exists():
            shutil.rmtree(top, ignore_errors=True)  # the host deleted the whole checkpoint


def _place(root: Path, name: str) -> Path:
    """Return the path of a new entry, and create the folders above it.

    A folder at the path of the entry is removed. The host has replaced this folder by the entry, but reports the
    folder's removal only later.
    """
    path = root / name
    _make_folder(root, PurePosixPath(name).parent)
    if path.is_dir() and not path.is_symlink():
        remove_tree(path)
    return path


def _make_folder(root: Path, name: PurePosixPath) -> None:
    """Create a folder and the folders above it, below the root.

    A file or link at the path of such a folder is removed, because the host has replaced it. A link to a folder outside
    of the root is not the host's, and is kept.
    """
    for path in (root / folder for folder in reversed((name, *name.parents))):
        own_link = path.is_symlink() and path.resolve().is_relative_to(root.resolve())
        if own_link or not path.is_dir():
            path.unlink(missing_ok=True)
            path.mkdir(parents=True, exist_ok=True)


def _checked(name: str) -> str:
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts:
        raise ValueError(f"a host sent the path {name!r}, which is outside its checkpoint folder")
    return name
