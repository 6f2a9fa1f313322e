"""Divide one large file of records into several files with almost equal numbers of records (``agent divide SRC DST
--shards N [--manifest]``).

Records are assigned to the new files in turn. The large file is read only once. The new files appear only when all of
them are complete.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from container import formats
from container.agent import sources
from container.agent.sources import DataObject
from container.contract.errors import AgentError
from container.formats import FramingError
from container.system import locks, processes
from container.system.files import replace
from container.system.locations import LocationError, is_s3, local_path

_HEAD = 4096
_CHUNK = 4 << 20
#: Maximum number of new files. All of them are open at the same time, and their numbers have five digits.
_MOST = 4096

#: Beginning of the names of folders for incomplete files, and the name of the lock in such a folder.
_STAGED, _LOCK = ".dividing-", "lock"

USAGE = "agent divide SRC DST --shards N [--manifest]"


def main(argv: Sequence[str]) -> int:
    """Run the command.

    Returns:
        0 on success. 1 if the data cannot be divided. 2 if the command line is invalid.
    """
    words = [word for word in argv if word != "--manifest"]
    if len(words) != 4 or words[2] != "--shards" or not words[3].isdecimal():
        print(f"usage: python -m container {USAGE}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that incomplete files are removed, as after Ctrl-C
    try:
        counts, size = divide(words[0], words[1], int(words[3]), manifest="--manifest" in argv)
    except AgentError as error:
        print(str(error).replace("\n", " "), file=sys.stderr)
        return 1
    print(f"{sum(counts):,} records, {size:,} bytes: {len(counts)} files of {min(counts):,} to {max(counts):,} records")
    return 0


def divide(source: str, target: str, shards: int, *, manifest: bool = False) -> tuple[list[int], int]:
    """Divide one file of records into several files.

    Args:
        source: The path, ``file://`` URL or ``s3://bucket/key`` of a file in the format TFRecord, RecordIO or lines of
            text.
        target: The folder for the new files. A folder that does not exist is created.
        shards: Number of files to write. With 8 files, the first name is ``<name>-00000-of-00008<suffix>``.
        manifest: Whether to write a manifest of the files to ``<folder>.manifest``, beside the folder.

    Returns:
        The number of records in each file, and the size of the source in bytes.

    Raises:
        AgentError: the source cannot be read or divided, or a file cannot be written. New files are removed, if
            possible.
    """
    if not 1 <= shards <= _MOST:
        raise AgentError(f"--shards must be from 1 to {_MOST:,}; got {shards}.")
    item = sources.describe(source)
    try:
        folder = local_path(target)
    except LocationError as error:
        raise AgentError(f"{target!r}: the target must be a folder of this machine: {error}") from None
    name = Path(item.key or item.uri)
    names = [f"{name.stem}-{number:05d}-of-{shards:05d}{name.suffix}" for number in range(shards)]
    processes.allow_open_files(shards + 64)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _staged(folder) as staged:
            if not manifest:
                _refuse_twice(item, folder, name)
            elif there := next((one for one in names if (folder / one).exists()), None):
                raise AgentError(f"{folder / there} exists already: remove it, or give another folder.")
            moved: list[Path] = []
            try:
                with contextlib.ExitStack() as stack:
                    files = [stack.enter_context(open(staged / part, "wb")) for part in names]
                    counts = _deal(item, files)
                for part in names:
                    os.replace(staged / part, folder / part)
                    moved.append(folder / part)
                if manifest:
                    _write_manifest(folder, names)
            except BaseException:
                for path in moved:  # otherwise they would be in the way of the next attempt
                    with contextlib.suppress(OSError):
                        path.unlink()
                raise
    except OSError as error:
        path = error.filename2 or error.filename or folder
        raise AgentError(f"{path}: the parts cannot be written: {error.strerror}.") from error
    return counts, item.size


def _refuse_twice(item: DataObject, folder: Path, name: Path) -> None:
    """Raise an error if a channel that reads the folder would contain each record twice.

    Args:
        item: The file to divide.
        folder: The folder for the new files.
        name: The name of the file to divide.

    Raises:
        AgentError: the folder has parts of an earlier division of the file, or the file itself.
    """
    part = re.compile(rf"{re.escape(name.stem)}-\d{{5}}-of-\d{{5}}{re.escape(name.suffix)}")
    if earlier := min((path.name for path in folder.iterdir() if part.fullmatch(path.name)), default=None):
        raise AgentError(f"{folder / earlier} exists already: remove it, or give another folder.")
    if not is_s3(item.uri) and Path(item.uri).is_relative_to(folder.resolve()):
        raise AgentError(
            f"{item.uri} is in {folder}, so a channel of this folder would contain each record twice. Give another "
            "folder, or use --manifest: the manifest lists only the new files."
        )


@contextlib.contextmanager
def _staged(folder: Path) -> Iterator[Path]:
    """Yield a new folder for incomplete files, in the given folder. The new folder is removed at the end.

    Incomplete files of an earlier run that was killed are removed first, because a channel would contain them. Each run
    holds a lock in its new folder. Therefore other runs with the same target do not remove the run's files.
    """
    for left in folder.glob(f"{_STAGED}*"):
        with contextlib.suppress(OSError):  # some file systems have no locks, and the folder may be gone by now
            if (lock := locks.take(left / _LOCK)) is not None:
                shutil.rmtree(left, ignore_errors=True)
                os.close(lock)
    new = Path(tempfile.mkdtemp(prefix=".new-", dir=folder))
    try:
        lock = None
        with contextlib.suppress(OSError):
            lock = locks.take(new / _LOCK)
        staged = new.rename(folder / f"{_STAGED}{new.name[1:]}")  # others see the folder only with its lock
        try:
            yield staged
        finally:
            shutil.rmtree(staged, ignore_errors=True)
            if lock is not None:
                os.close(lock)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _deal(item: DataObject, files: Sequence[BinaryIO]) -> list[int]:
    """Assign an object's records to the files in turn. Return the number of records in each file."""
    shards = len(files)
    number = 0
    with sources.open(item) as stream:
        head = stream.read(_CHUNK)
        record_format = formats.recognise(head[:_HEAD])
        if record_format is None:
            raise AgentError(
                f"{item.uri!r} cannot be divided, because its format is not TFRecord, RecordIO or text. Unpack a "
                "compressed file first."
            )
        pieces = itertools.chain([head], iter(lambda: stream.read(_CHUNK), b""))
        try:
            for data, ends in formats.blocks(record_format, pieces):
                begins = [0, *ends]
                for shard, file in enumerate(files):
                    mine = range((shard - number) % shards, len(ends), shards)
                    file.write(b"".join([data[begins[index] : ends[index]] for index in mine]))
                number += len(ends)
        except FramingError as error:
            where = f"record {error.count + 1:,} at byte {error.position:,}"
            raise AgentError(f"{item.uri!r}: {where}: {error.cause}.") from None
    return [len(range(shard, number, shards)) for shard in range(shards)]


def _write_manifest(folder: Path, names: list[str]) -> None:
    """Write the manifest beside the folder.

    The manifest is not written into the folder, because in Pipe mode all files in the folder are part of the stream.
    """
    import json

    entries = [{"prefix": f"{folder.resolve()}/"}, *names]
    data = json.dumps(entries, indent=1).encode() + b"\n"
    replace(folder.with_name(f"{folder.name}.manifest"), data, mode=0o666)
