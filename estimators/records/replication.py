"""Copy a job's record from the machine that runs the job's supervisor, and keep the copy up to date.

A dispatcher is a machine that runs the supervisors of jobs that other machines send to it. There, :class:`Changes`
reads new data from the record, and returns the data as messages (:mod:`container.contract.messages`). On the machine
that sent the job, :class:`Replica` writes the data of these messages into the local copy. The copy has the same bytes
as the record, so that the same code can read both. The status is sent last, so that it never describes data that the
copy does not have yet.

Logs and events only grow. Therefore their new data is appended to the files in the copy. The file ``provenance.json``
is replaced as a whole. The job's model, outputs and checkpoints are copied when the job is over.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from container.contract.messages import Message
from container.system import files
from estimators.job.errors import RecordError
from estimators.records import status as statuses
from estimators.records.logs import read_part, size_of
from estimators.records.private_files import explained, open_private
from estimators.records.record import JobRecord

#: The maximum number of bytes of data in a message. The base64 encoding makes the message a third longer.
_PIECE = 256 << 10
#: The files that only grow, the files that are replaced, and the folders that are copied when the job is over.
_GROWING = re.compile(r"events\.jsonl|supervisor\.log|hosts/[A-Za-z0-9][\w.-]*/logs/attempt-\d+/[\w.%-]+\.(log|times)")
_REPLACED = ("provenance.json",)
_MADE = ("output", "checkpoints")
_PART = ".part"


class Changes:
    """A reader of a record that finds the data that the copy does not have yet.

    Args:
        record: The record.
        have: The description of the files in the copy that :attr:`Replica.have` returns.
    """

    def __init__(self, record: JobRecord, have: Mapping[str, Any]) -> None:
        self._record = record
        self._sizes = {str(path): int(size) for path, size in dict(have.get("sizes") or {}).items()}
        self._made = {str(path): tuple(seen) for path, seen in dict(have.get("made") or {}).items()}
        self._replaced: dict[str, tuple[int, int]] = {}
        self._status: Any = None
        #: Whether the job is over and all its data has been returned by :meth:`read`.
        self.complete = False

    def read(self) -> Iterator[Message]:
        """Yield messages with the data that is new since the last call.

        If the status has changed, it is the last message.
        """
        supervised = self._record.is_supervised()
        status = self._record.read_status()
        over = statuses.is_terminal(status)
        yield from self._growing("events.jsonl")
        yield from self._growing("supervisor.log")
        yield from self._logs()
        for name in _REPLACED:
            yield from self._replacing(name)
        if over:
            for name in _MADE:
                yield from self._making(name)
        if status != self._status:
            self._status = status
            yield {"op": "status", "status": status}
        self.complete = over and not supervised

    def _logs(self) -> Iterator[Message]:
        root = self._record.path
        for host in self._record.hosts:
            for times in sorted(self._record.host_dir(host).glob("logs/attempt-*/*.times")):
                path = times.relative_to(root).as_posix()
                # First read the size of the times file, then copy the log. Otherwise the copy could have times of
                # output that is missing in its log.
                end = size_of(times)
                yield from self._growing(times.with_suffix(".log").relative_to(root).as_posix())
                yield from self._growing(path, end)

    def _growing(self, path: str, end: int | None = None) -> Iterator[Message]:
        file = self._record.path / path
        end = size_of(file) if end is None else end
        at = self._sizes.get(path, 0)
        if end < at:  # the file is shorter than the copy, so it is a new file
            at = 0
        while at < end:
            data = read_part(file, at, min(_PIECE, end - at))
            if not data:
                break
            yield {"op": "grow", "path": path, "at": at, "data": _packed(data)}
            at += len(data)
            self._sizes[path] = at

    def _replacing(self, name: str) -> Iterator[Message]:
        file = self._record.path / name
        seen = _seen(file)
        if seen is not None and self._replaced.get(name) != seen:
            self._replaced[name] = seen
            data = read_part(file, 0, seen[0] + 1)
            for at in range(0, max(1, len(data)), _PIECE):
                last = at + _PIECE >= len(data)
                yield {"op": "put", "path": name, "at": at, "data": _packed(data[at : at + _PIECE]), "last": last}

    def _making(self, folder: str) -> Iterator[Message]:
        root = self._record.path
        for place, _, names in os.walk(root / folder):
            for name in sorted(names):
                file = Path(place) / name
                path = file.relative_to(root).as_posix()
                seen = _seen(file)
                if seen is None or file.is_symlink() or self._made.get(path) == seen or name.endswith(_PART):
                    continue
                at = 0
                while True:
                    data = read_part(file, at, _PIECE)
                    last = at + len(data) >= seen[0] or not data
                    message = {"op": "make", "path": path, "at": at, "data": _packed(data), "last": last}
                    yield {**message, "changed": seen[1]} if last else message
                    at += len(data)
                    if last:
                        break
                self._made[path] = seen


class Replica:
    """A writer that adds data of a record to its local copy.

    Args:
        record: The record that is the local copy. The caller must hold its lock.
    """

    def __init__(self, record: JobRecord) -> None:
        self._record = record
        #: The reason why outputs or checkpoints could not be written to the copy, or None if all could be written.
        self.lacks: str | None = None

    @property
    def have(self) -> dict[str, Any]:
        """Return a description of the files in the copy, from which :class:`Changes` determines what is missing."""
        root = self._record.path
        sizes = {name: size_of(root / name) for name in ("events.jsonl", "supervisor.log")}
        for host in self._record.hosts:
            for file in self._record.host_dir(host).glob("logs/attempt-*/*"):
                sizes[file.relative_to(root).as_posix()] = size_of(file)
        made = {}
        for folder in _MADE:
            for place, _, names in os.walk(root / folder):
                for file in (Path(place) / name for name in names if not name.endswith(_PART)):
                    if (seen := _seen(file)) is not None:
                        made[file.relative_to(root).as_posix()] = list(seen)
        return {"sizes": sizes, "made": made}

    def take(self, message: Message) -> None:
        """Write the data of a message from :class:`Changes` into the copy.

        The caller handles messages with a status. This method refuses these messages. If an output or a checkpoint
        cannot be written, :attr:`lacks` is set, and no error is raised.

        Raises:
            RecordError: another file cannot be written, or the message does not have data of a record's file.
        """
        operation, path = message.get("op"), message.get("path")
        known = {"grow": _is_growing, "put": lambda name: name in _REPLACED, "make": _is_made}.get(str(operation))
        if known is None or not isinstance(path, str) or not known(path):
            raise RecordError(
                f"training job {self._record.name!r}: received {operation!r} for {path!r}, which is not part of a job "
                "record."
            )
        try:
            data = base64.b64decode(message["data"], validate=True)
            at = int(message["at"])
        except (KeyError, TypeError, ValueError, binascii.Error) as error:
            raise RecordError(
                f"training job {self._record.name!r}: received a damaged {operation!r} for {path!r}: {error}."
            ) from None
        file = self._record.path / path
        if operation == "grow":
            with explained(file, "write"):
                _write(file, at, data)
        elif operation == "put":
            self._put(file, at, data, last=bool(message.get("last")))
        elif self.lacks is None:
            try:
                self._make(file, at, data, message.get("changed") if message.get("last") else None)
            except OSError as error:  # such as a full disk: continue, so that the copy still gets the job's status
                self.lacks = f"{path}: {error.strerror or error}"

    def _put(self, file: Path, at: int, data: bytes, *, last: bool) -> None:
        staged = file.with_name(f".{file.name}{_PART}")
        with explained(file, "write"):
            _write(staged, at, data)
            if last:
                os.replace(staged, file)

    def _make(self, file: Path, at: int, data: bytes, changed: Any) -> None:
        staged = file.with_name(f"{file.name}{_PART}")
        try:
            _write(staged, at, data)
        except OSError:
            with contextlib.suppress(OSError):
                staged.unlink()
            raise
        if changed is not None:
            os.utime(staged, ns=(int(changed), int(changed)))
            os.replace(staged, file)


def _is_growing(path: str) -> bool:
    return _GROWING.fullmatch(path) is not None


def _is_made(path: str) -> bool:
    parts = path.split("/")
    return len(parts) > 1 and parts[0] in _MADE and not {"", ".", ".."} & set(parts) and "\0" not in path


def _packed(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _seen(path: Path) -> tuple[int, int] | None:
    """Return the size of a file in bytes and its modification time in nanoseconds. Return None if there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


def _write(path: Path, at: int, data: bytes) -> None:
    """Append data to a file that must have ``at`` bytes. If ``at`` is 0, the old content is removed first.

    Raises:
        OSError: the file cannot be written, or its size is not ``at`` bytes.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = open_private(path, os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if at == 0 else 0))
    try:
        if os.fstat(descriptor).st_size != at:
            raise OSError(0, f"the file does not end at byte {at}")
        os.lseek(descriptor, at, os.SEEK_SET)
        files.write_all(descriptor, data)
    finally:
        os.close(descriptor)
