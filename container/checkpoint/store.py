"""Store checkpoints in a folder.

::

    checkpoint-00000042-step-1200/    a complete checkpoint: manifest.json and the files that it lists
    .staging-…/                       an unfinished checkpoint; if its writer was killed, the next writer deletes it
    .trash-…/                         a checkpoint that is being deleted
    .lock                             the lock that the writer holds
    my-label -> checkpoint-…          a reference (a link): the checkpoint that it refers to is not deleted

A folder with a checkpoint's name is complete, even if its writer or the machine fails at any time. All files are on the
disk before the rename, and the rename is on the disk before :meth:`CheckpointStore.write` returns. Readers need not
acquire the writer's lock. A checkpoint is not deleted while it is being read.

This module works with any framework, and imports only numpy and the standard library.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import os
import re
import shutil
import stat
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from container.checkpoint import manifest as manifests
from container.checkpoint import retention
from container.checkpoint.errors import (
    CheckpointError,
    CheckpointWriteError,
    DamagedCheckpointError,
    NoUsableCheckpointError,
    Skipped,
)
from container.checkpoint.lock import WriterLock
from container.checkpoint.manifest import CheckpointManifestError, FileEntry, Manifest, Progress
from container.contract.frozen import dataclass
from container.system.files import write_all
from container.system.holding import hold

_NAME = re.compile(r"checkpoint-(\d+)-step-(\d+)")
_LABEL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
_STAGING = ".staging-"
_TRASH = ".trash-"

#: Size of the pieces in which files are written, in bytes: large enough to be fast, small enough to stay in the cache
#: between the checksum and the write.
_PIECE = 1 << 20

#: Maximum size of a manifest in bytes; a larger one is not read.
_MANIFEST_LIMIT = 256 << 20

#: Errors when the disk, or the user's quota, is full.
_FULL = (errno.ENOSPC, errno.EDQUOT)

#: How often a checkpoint may vanish between listing and reading before the search fails.
_RESCANS = 20


@dataclass(frozen=True, kw_only=True)
class CheckpointContents:
    """The contents of a checkpoint that is to be written.

    Attributes:
        progress: The training's progress at the save.
        files: The content of each file, as a sequence of buffers, by the file's name.
        metrics: Values of metrics at the save, by name.
        metadata: The metadata that the user passed to the save, as a JSON value.
        facts: Facts about the training that saves the checkpoint.
    """

    progress: Progress
    files: Mapping[str, Sequence[memoryview]]
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    metadata: Any = None
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A verified checkpoint in memory.

    Attributes:
        name: Name of the checkpoint's folder.
        manifest: The checkpoint's manifest.
        files: A mapping from the name of each file to the file's bytes, as an array of uint8. The bytes are neither
            copied nor read again after the verification.
        skipped: The damaged checkpoints that are newer than this checkpoint, the newest first.
    """

    name: str
    manifest: Manifest
    files: Mapping[str, np.ndarray[Any, Any]]
    skipped: tuple[Skipped, ...] = ()


class CheckpointStore:
    """A folder of checkpoints. Call :meth:`lock` before writing. Reading needs no lock.

    Args:
        directory: The folder. The folder need not exist if checkpoints are only read.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = os.path.abspath(os.path.expanduser(os.fspath(directory)))
        self._lock: WriterLock | None = None
        self._serial = 0
        #: Number of the last checkpoint that any host is known to have saved. New checkpoints get higher numbers.
        self.floor = 0
        self._metrics: dict[str, Mapping[str, float]] = {}
        self._damaged: set[str] = set()

    # --- reading ---

    def names(self) -> list[str]:
        """Return the names of all checkpoints, including damaged checkpoints, in the order of saving."""
        # Files and links with such a name are not checkpoints.
        return [name for name, is_folder in self._named() if is_folder]

    def _named(self) -> list[tuple[str, bool]]:
        """Return all entries of the folder that are named like a checkpoint, in the order of saving.

        Returns:
            Pairs: the name, and whether the entry is a folder.
        """
        try:
            with os.scandir(self.directory) as entries:
                found = [
                    (entry.name, entry.is_dir(follow_symlinks=False))
                    for entry in entries
                    if _NAME.fullmatch(entry.name)
                ]
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(found, key=lambda pair: (serial_of(pair[0]), pair[0]))

    def manifest(self, name: str) -> Manifest:
        """Read only the manifest of a checkpoint.

        Raises:
            DamagedCheckpointError: the manifest is damaged.
            FileNotFoundError: there is no checkpoint of that name.
        """
        with self._reading(name) as folder:
            return self._manifest(name, folder)

    def read(self, name: str) -> Loaded:
        """Read one checkpoint and verify it.

        Args:
            name: Name of the checkpoint's folder, or a label.

        Raises:
            DamagedCheckpointError: the checkpoint is damaged. The error names the damaged file.
            FileNotFoundError: there is no checkpoint of that name.
            CheckpointVersionError: this version of fleetfit cannot read the checkpoint's format.
        """
        name = self.resolve(name)
        with self._reading(name) as folder:
            manifest = self._manifest(name, folder)
            files = {entry.name: self._verified(name, folder, entry) for entry in manifest.files}
        return Loaded(name=name, manifest=manifest, files=files)

    def read_newest(self) -> Loaded | None:
        """Read the newest undamaged checkpoint. Return None if there are no checkpoints.

        Raises:
            NoUsableCheckpointError: there are checkpoints, and all of them are damaged.
            CheckpointVersionError: this version of fleetfit cannot read the format of the newest undamaged checkpoint.
        """
        return self._first(lambda: (name for name, _ in reversed(self._named())))

    def read_best(self, best: retention.Best) -> Loaded | None:
        """Read the best undamaged checkpoint. Return None if there are no checkpoints.

        Raises:
            FileNotFoundError: there are checkpoints, and none of them has a number for the metric.
            NoUsableCheckpointError: there are checkpoints with the metric, and all of them are damaged.
        """
        found = self._first(lambda: iter(best.rank(self.metrics())))
        if found is None and (metrics := self.metrics()):
            known = ", ".join(sorted({name for values in metrics.values() for name in values})) or "none"
            text = f"no checkpoint has a number for the metric {best.metric!r}; metrics of the checkpoints: {known}"
            raise FileNotFoundError(errno.ENOENT, text, self.directory)
        return found

    def metrics(self) -> dict[str, Mapping[str, float]]:
        """Return the metrics of each checkpoint by the checkpoint's name, in the order of saving.

        Checkpoints whose manifest is damaged are omitted.
        """
        found = {}
        for name in self.names():
            if name not in self._metrics:
                try:
                    self._metrics[name] = self.manifest(name).metrics
                except (CheckpointError, OSError):
                    continue
            found[name] = self._metrics[name]
        return found

    def resolve(self, name: str) -> str:
        """Return the checkpoint that a name or a label refers to.

        Raises:
            FileNotFoundError: there is no checkpoint and no label of that name.
        """
        path = os.path.join(self.directory, name)
        target = os.path.basename(os.path.realpath(path)) if os.path.islink(path) else name
        if not _NAME.fullmatch(target) or not os.path.isdir(os.path.join(self.directory, target)):
            known = ", ".join([*self.names(), *self.references()]) or "none"
            raise FileNotFoundError(errno.ENOENT, f"no such checkpoint; existing checkpoints and labels: {known}", path)
        return target

    # --- references ---

    def references(self) -> dict[str, str]:
        """Return the name of the entry that each label refers to. A label is a link in the folder of checkpoints.

        Returns:
            A dict of the entries' names by the labels.
        """
        found = {}
        with contextlib.suppress(FileNotFoundError), os.scandir(self.directory) as entries:
            for entry in entries:
                if entry.is_symlink():
                    target = os.path.realpath(entry.path)
                    if os.path.dirname(target) == os.path.realpath(self.directory):
                        found[entry.name] = os.path.basename(target)
        return found

    def pin(self, name: str, label: str) -> None:
        """Create a label that refers to a checkpoint, so that the checkpoint is not deleted. Any process may call this
        method.

        Args:
            name: The name of the checkpoint, or another label of the checkpoint.
            label: The label. A label that already exists is changed to refer to this checkpoint.

        Raises:
            ValueError: the label is not valid.
            FileNotFoundError: there is no checkpoint of that name.
        """
        if not _LABEL.fullmatch(label) or _NAME.fullmatch(label):
            raise ValueError(
                f"label {label!r} must consist of letters, digits, '.', '_' and '-', and not be a checkpoint's name."
            )
        path = os.path.join(self.directory, label)
        if os.path.lexists(path) and not os.path.islink(path):
            raise ValueError(f"label {label!r} cannot be used: {path} exists and is not a link.")
        name = self.resolve(name)
        aside = os.path.join(self.directory, f".{label}.{os.urandom(4).hex()}")
        with self._reading(name):  # meanwhile the checkpoint cannot be deleted
            os.symlink(name, aside)
            os.rename(aside, path)
        _sync(self.directory)

    def unpin(self, label: str) -> None:
        """Remove a label.

        Raises:
            FileNotFoundError: there is no such label.
        """
        path = os.path.join(self.directory, label)
        if label not in self.references():
            known = ", ".join(self.references()) or "none"
            raise FileNotFoundError(errno.ENOENT, f"no such label; existing labels: {known}", path)
        os.unlink(path)

    # --- writing ---

    def lock(self, timeout: float = 5.0) -> None:
        """Acquire the folder's writer lock. Create the folder if it is missing. Delete incomplete files of a killed
        writer.

        Args:
            timeout: Maximum number of seconds to wait if another process writes into the folder. Waiting helps if that
                process is about to exit.

        Raises:
            CheckpointLockedError: another process writes into the folder.
            CheckpointWriteError: the folder cannot be created or written.
        """
        if self._lock is not None:
            return
        try:
            os.makedirs(self.directory, exist_ok=True)
            self._lock = WriterLock(self.directory, timeout)
        except OSError as error:
            reading = ""
            if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
                reading = " To restore without writing, use Checkpointer(directory, read_only=True)."
            raise CheckpointWriteError(
                f"checkpoints cannot be written into {self.directory}: {error.strerror}. Name another folder as "
                f"Checkpointer(directory=…) or in SM_CHECKPOINT_DIR.{reading}"
            ) from error
        entries = os.listdir(self.directory)
        for entry in entries:
            if entry.startswith((_STAGING, _TRASH)):
                shutil.rmtree(os.path.join(self.directory, entry), ignore_errors=True)
        # Include files and links that are named like a checkpoint, because a new checkpoint's folder cannot be renamed
        # to such a name.
        self._serial = max((serial_of(name) for name in entries if _NAME.fullmatch(name)), default=0)

    def close(self) -> None:
        """Release the writer lock."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def write(self, contents: CheckpointContents) -> tuple[str, Manifest]:
        """Write a checkpoint. When this method has returned, a sudden failure of the machine cannot destroy the
        checkpoint.

        Args:
            contents: The contents of the checkpoint.

        Returns:
            The checkpoint's name and manifest.

        Raises:
            CheckpointWriteError: the checkpoint cannot be written. No incomplete files remain.
        """
        if self._lock is None:
            raise CheckpointError("lock() the store before writing")
        serial = max(self._serial, self.floor) + 1
        name = f"checkpoint-{serial:08d}-step-{contents.progress.step}"
        staging = os.path.join(self.directory, f"{_STAGING}{name}-{os.urandom(4).hex()}")
        try:
            os.mkdir(staging)
            entries = []
            for file, pieces in contents.files.items():
                size, crc32 = _write_file(staging, file, pieces)
                entries.append(FileEntry(name=file, bytes=size, crc32=crc32))
            manifest = Manifest(
                serial=serial,
                saved_ns=time.time_ns(),
                progress=contents.progress,
                files=tuple(entries),
                metrics=contents.metrics,
                metadata=contents.metadata,
                facts=contents.facts,
            )
            _write_file(staging, manifests.FILE_NAME, [memoryview(manifest.to_bytes())])
            _sync(staging)
            hold("checkpoint.before_commit")
            os.rename(staging, os.path.join(self.directory, name))
            _sync(self.directory)
        except BaseException as error:
            shutil.rmtree(staging, ignore_errors=True)
            if isinstance(error, OSError):
                raise CheckpointWriteError(self._explain(name, error, contents)) from error
            raise
        self._serial = serial
        self._metrics[name] = manifest.metrics
        return name, manifest

    def prune(self, *, keep: int | None, best: retention.Best | None = None) -> list[str]:
        """Delete checkpoints that need not be kept, and return their names.

        Args:
            keep: Number of newest undamaged checkpoints to keep. None to keep all checkpoints.
            best: The metric that determines the best checkpoints. The best checkpoints are also kept.

        Raises:
            CheckpointWriteError: a checkpoint cannot be deleted.
        """
        if self._lock is None:
            raise CheckpointError("lock() the store before pruning")
        names = self.names()
        metrics = self.metrics()
        chosen = retention.doomed(
            names,
            keep=keep,
            best=best,
            metrics=metrics,
            referenced=set(self.references().values()),
            damaged={name for name in names if name in self._damaged or name not in metrics},
        )
        try:
            return [name for name in chosen if self._delete(name)]
        except OSError as error:
            raise CheckpointWriteError(
                f"an old checkpoint cannot be deleted: {error.filename}: {error.strerror}"
            ) from error

    def _delete(self, name: str) -> bool:
        """Delete a checkpoint, unless another process is reading the checkpoint or has just pinned it.

        Returns:
            Whether the checkpoint was deleted.
        """
        path = os.path.join(self.directory, name)
        try:
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False  # the user has deleted it
        try:
            if not _flock(folder, fcntl.LOCK_EX) or name in self.references().values():
                return False
            trash = os.path.join(self.directory, f"{_TRASH}{name}-{os.urandom(4).hex()}")
            os.rename(path, trash)
        finally:
            os.close(folder)
        self._metrics.pop(name, None)
        self._damaged.discard(name)
        shutil.rmtree(trash, ignore_errors=True)  # the next writer deletes the rest
        return True

    def _explain(self, name: str, error: OSError, contents: CheckpointContents) -> str:
        text = f"{name} could not be written into {self.directory}: {error.strerror or error}"
        if error.errno in _FULL:
            sizes = [sum(piece.nbytes for piece in pieces) for pieces in contents.files.values()]
            fewer = False
            with contextlib.suppress(OSError):
                disk = os.statvfs(self.directory)
                free, block = disk.f_bavail * disk.f_frsize, disk.f_frsize
                text += f" ({_room(sizes, free=free, block=block)})"
                fewer = free + self._bytes_beside_newest() >= _needed(sizes, block)
            text += ". Free some space" + (
                ", or keep fewer checkpoints: keep=1 makes room"
                if fewer
                else ": an old checkpoint is deleted after the new one is complete, so even keep=1 needs room for two"
            )
        return f"{text}. Earlier checkpoints are untouched."

    def _bytes_beside_newest(self) -> int:
        """Return the total size, in bytes, of the checkpoints that would be deleted with ``keep=1``."""
        names, metrics = self.names(), self.metrics()
        damaged = {name for name in names if name in self._damaged or name not in metrics}
        pinned = set(self.references().values())
        total = 0
        for name in retention.doomed(names, keep=1, referenced=pinned, damaged=damaged):
            with contextlib.suppress(CheckpointError, OSError):
                total += self.manifest(name).total_bytes
        return total

    # --- reading and verifying ---

    def _first(self, candidates: Any) -> Loaded | None:
        """Return the first undamaged checkpoint among the candidates. Return None if there are no candidates.

        If a candidate is deleted before it is read, start again. In this case, a newer checkpoint exists.

        Args:
            candidates: A function that returns the names of the candidates, in the order of preference.

        Raises:
            NoUsableCheckpointError: there are candidates, and all of them are damaged.
        """
        for _ in range(_RESCANS):
            skipped: list[Skipped] = []
            try:
                for name in candidates():
                    if (reason := self._no_folder(name)) is not None:
                        skipped.append(Skipped(name=name, file=None, reason=reason))
                        continue
                    try:
                        loaded = self.read(name)
                    except DamagedCheckpointError as error:
                        skipped.append(error.damage)
                        self._damaged.add(name)
                    else:
                        return dataclasses.replace(loaded, skipped=tuple(skipped))
            except FileNotFoundError:
                continue
            if skipped:
                raise NoUsableCheckpointError(self.directory, skipped)
            return None
        raise CheckpointError(f"the checkpoints in {self.directory} are deleted faster than they can be read")

    def _no_folder(self, name: str) -> str | None:
        """Return None if the entry with a checkpoint's name is a folder. Otherwise return why the entry is not a
        checkpoint.
        """
        path = os.path.join(self.directory, name)
        mode = os.lstat(path).st_mode
        if stat.S_ISDIR(mode):
            return None
        if not stat.S_ISLNK(mode):
            return "it is not a folder"
        target = os.path.realpath(path)
        if os.path.dirname(target) == os.path.realpath(self.directory):
            return f"it is a link to {os.path.basename(target)}, and that checkpoint is read under its own name"
        return f"it is a link to {target}, which another program may change. To restore from that folder, copy it here"

    @contextlib.contextmanager
    def _reading(self, name: str) -> Iterator[int]:
        """Open a checkpoint's folder, and prevent the folder's deletion while it is open.

        Raises:
            FileNotFoundError: the folder does not exist, or is being deleted.
        """
        path = os.path.join(self.directory, name)
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # A shared lock on the folder itself; a writer that deletes the folder takes an exclusive lock. On file
            # systems without such locks, the reader notices only that files have vanished.
            if not _flock(folder, fcntl.LOCK_SH) or os.fstat(folder).st_ino != os.stat(path).st_ino:
                raise FileNotFoundError(errno.ENOENT, "it is being deleted", path)
            yield folder
        finally:
            os.close(folder)

    @contextlib.contextmanager
    def _opened(self, name: str, folder: int, file: str) -> Iterator[tuple[int, int]]:
        """Open a file of a checkpoint, and yield the file's descriptor and size."""
        try:
            fd = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        except FileNotFoundError:
            self._check_not_deleted(name, folder)
            raise _damaged(name, file, "it is missing") from None
        except OSError as error:
            raise _damaged(name, file, f"it cannot be opened: {error.strerror}") from error
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise _damaged(name, file, "it is not a regular file")
            yield fd, status.st_size
        except OSError as error:
            raise _damaged(name, file, f"it cannot be read: {error.strerror}") from error
        finally:
            os.close(fd)

    def _manifest(self, name: str, folder: int) -> Manifest:
        with self._opened(name, folder, manifests.FILE_NAME) as (fd, size):
            if size > _MANIFEST_LIMIT:
                raise _damaged(name, manifests.FILE_NAME, f"it has {size:,} bytes, too many for a manifest")
            try:
                return Manifest.from_bytes(_read_whole(fd, size).tobytes())
            except CheckpointManifestError as error:
                raise _damaged(name, manifests.FILE_NAME, str(error)) from error

    def _verified(self, name: str, folder: int, entry: FileEntry) -> np.ndarray[Any, Any]:
        with self._opened(name, folder, entry.name) as (fd, size):
            if size != entry.bytes:
                what = "is truncated" if size < entry.bytes else "has grown"
                raise _damaged(name, entry.name, f"it {what}: {size:,} bytes instead of {entry.bytes:,}")
            content = _read_whole(fd, entry.bytes)
        if content.size != entry.bytes:
            raise _damaged(name, entry.name, f"it is truncated: {content.size:,} bytes instead of {entry.bytes:,}")
        crc32 = f"{zlib.crc32(content.data):08x}"
        if crc32 != entry.crc32:
            raise _damaged(name, entry.name, f"its content has changed: CRC-32 {crc32} instead of {entry.crc32}")
        return content

    def _check_not_deleted(self, name: str, folder: int) -> None:
        """Check whether a checkpoint lacks a file only because the checkpoint is being deleted.

        Raises:
            FileNotFoundError: the checkpoint is being deleted.
        """
        path = os.path.join(self.directory, name)
        if os.fstat(folder).st_ino != os.stat(path).st_ino:
            raise FileNotFoundError(errno.ENOENT, "it is being deleted", path)


def is_full(error: CheckpointWriteError) -> bool:
    """Return whether a checkpoint could not be written because the disk is full or the user's disk quota is used up."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in _FULL


def _damaged(name: str, file: str, reason: str) -> DamagedCheckpointError:
    return DamagedCheckpointError(Skipped(name=name, file=file, reason=reason))


def _room(sizes: Sequence[int], *, free: int, block: int) -> str:
    """Return a message with the number of free bytes and the number of needed bytes."""
    needed = _needed(sizes, block)
    text = f"{free:,} bytes are free, and at least {needed:,} are needed, counted in blocks of {block:,}"
    return text if free < needed else f"{text}; this is enough: a quota, a reserve or another program may be the cause"


def _needed(sizes: Sequence[int], block: int) -> int:
    """Return how many bytes on the disk a checkpoint with files of these sizes needs.

    The manifest and the folder are counted as one block each.
    """
    return sum(-(-size // block) * block for size in sizes) + 2 * block


def serial_of(name: str) -> int:
    """Return the serial number in a checkpoint's name."""
    match = _NAME.fullmatch(name)
    assert match is not None
    return int(match[1])


def _write_file(folder: str, name: str, pieces: Sequence[memoryview]) -> tuple[int, str]:
    """Write a new file, and flush it to the disk.

    Returns:
        The file's size in bytes, and its CRC-32 checksum as 8 hexadecimal digits.
    """
    path = os.path.join(folder, name)
    crc32 = size = 0
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        for piece in pieces:
            rest = piece.cast("B") if piece.nbytes else memoryview(b"")
            while rest:
                part = rest[:_PIECE]
                crc32 = zlib.crc32(part, crc32)
                write_all(fd, part)
                size += part.nbytes
                rest = rest[_PIECE:]
        os.fsync(fd)
    finally:
        os.close(fd)
    return size, f"{crc32:08x}"


def _read_whole(fd: int, size: int) -> np.ndarray[Any, Any]:
    """Read up to ``size`` bytes. Return fewer bytes if the file is shorter."""
    content = np.empty(size, np.uint8)
    view = content.data
    done = 0
    while done < size:
        count = os.readv(fd, [view[done : done + (64 << 20)]])
        if not count:
            break
        done += count
    return content[:done]


def _sync(folder: str) -> None:
    """Flush a folder's entries to the disk, if the file system supports flushing folders."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(fd)


def _flock(fd: int, operation: int) -> bool:
    """Try to lock an open folder without waiting.

    Returns:
        False if another process holds the lock. True if the lock was acquired, and also if the file system has no
        locks.
    """
    try:
        fcntl.flock(fd, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.EBADF, errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):
            raise
    return True
