"""Uploads in parts: each is a folder of the bucket's own with what it will be and the parts that have come."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from estimators.service.errors import ServiceError
from estimators.service.s3 import objects
from estimators.service.s3.keys import Bucket

#: The smallest part but the last, in bytes.
_LEAST = 5 << 20
_PART = re.compile(r"(\d{5})-([0-9a-f]{32})")


@dataclasses.dataclass(frozen=True)
class Part:
    """A part that has come.

    Attributes:
        number: Its number, from 1 on.
        etag: Its MD5.
        path: Its file.
    """

    number: int
    etag: str
    path: Path


@dataclasses.dataclass(frozen=True)
class Upload:
    """An upload in parts.

    Attributes:
        name: Its id.
        key: The key of what it becomes.
        headers: The headers of that.
        begun: When it was begun, in nanoseconds since 1970.
        folder: Its folder.
    """

    name: str
    key: str
    headers: Mapping[str, str]
    begun: int
    folder: Path

    def parts(self) -> list[Part]:
        """The parts that have come, by number; those that came again with other content, in the order of coming."""
        found = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    if (match := _PART.fullmatch(entry.name)) is not None:
                        part = Part(int(match[1]), match[2], Path(entry.path))
                        found.append((part.number, entry.stat().st_mtime_ns, part))
        return [part for *_, part in sorted(found, key=lambda item: item[:2])]

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Let nobody else complete it meanwhile: a client that waits for long asks again."""
        descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with contextlib.suppress(OSError):  # not on every file system
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def begin(bucket: Bucket, key: str, headers: Mapping[str, str]) -> Upload:
    """Begin an upload."""
    name = uuid.uuid4().hex
    folder = bucket.uploads / name
    upload = Upload(name, key, dict(headers), time.time_ns(), folder)
    said = {"key": key, "headers": upload.headers, "begun": upload.begun}

    def write() -> None:
        (folder / "new").write_text(json.dumps(said), encoding="utf-8")
        os.replace(folder / "new", folder / "upload.json")

    bucket.within(folder, write)
    return upload


def find(bucket: Bucket, name: str, key: str | None = None) -> Upload:
    """Return an upload.

    Raises:
        ServiceError: there is none, or it is one of another key.
    """
    folder = bucket.uploads / name
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        if re.fullmatch(r"[0-9a-f]{32}", name):
            said = json.loads((folder / "upload.json").read_text(encoding="utf-8"))
            upload = Upload(name, said["key"], said["headers"], said["begun"], folder)
            if key in (None, upload.key):
                return upload
    raise ServiceError(
        "NoSuchUpload",
        "The specified upload does not exist. The upload ID may be invalid, or the upload may have been aborted or "
        "completed.",
        404,
    )


def uploads(bucket: Bucket) -> Iterator[Upload]:
    """Return the uploads of a bucket, by key and beginning."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(bucket.uploads):
            with contextlib.suppress(ServiceError):
                found.append(find(bucket, name))
    yield from sorted(found, key=lambda upload: (upload.key, upload.begun))


def add(bucket: Bucket, upload: Upload, number: int, staged: Path, etag: str) -> None:
    """Make a staged file a part. One of the same number stays until the end: which one counts is said there."""
    try:
        os.replace(staged, upload.folder / f"{number:05d}-{etag}")
    except FileNotFoundError:  # ended meanwhile
        find(bucket, upload.name)
        raise


def complete(upload: Upload, wanted: Sequence[tuple[int, str]], target: BinaryIO) -> str:
    """Write an upload's content into a file.

    Args:
        upload: The upload.
        wanted: The numbers and ETags of its parts.
        target: The file.

    Returns:
        The ETag: the MD5 of the parts' MD5s, and how many there are.

    Raises:
        ServiceError: these are no parts of it.
    """
    there = {(part.number, part.etag): part for part in upload.parts()}
    if not wanted or [number for number, _ in wanted] != sorted({number for number, _ in wanted}):
        raise ServiceError("InvalidPartOrder", "The list of parts was not in ascending order.")
    digests = b""
    for place, (number, etag) in enumerate(wanted):
        part = there.get((number, etag.strip('"')))
        if part is None:
            raise ServiceError(
                "InvalidPart",
                f"Part {number} could not be found: it was not uploaded, or its entity tag differs.",
            )
        with open(part.path, "rb") as source:
            size = os.fstat(source.fileno()).st_size
            if size < _LEAST and place < len(wanted) - 1:
                raise ServiceError(
                    "EntityTooSmall",
                    f"Your proposed upload is smaller than the minimum allowed size: part {number} has {size} bytes; "
                    f"every part but the last must have at least {_LEAST}.",
                )
            objects.copy(source, target, 0, size)
        digests += bytes.fromhex(part.etag)
    return f"{hashlib.md5(digests, usedforsecurity=False).hexdigest()}-{len(wanted)}"


def end(bucket: Bucket, upload: Upload) -> None:
    """Remove an upload and its parts."""
    with contextlib.suppress(FileNotFoundError):
        (upload.folder / "upload.json").unlink()  # the first: without it nothing is there
    shutil.rmtree(upload.folder, ignore_errors=True)
    bucket.tidy()
