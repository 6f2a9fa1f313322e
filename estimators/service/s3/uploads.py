"""Manage multipart uploads. Each upload has a folder in the bucket with a description and the received parts."""

from __future__ import annotations

import contextlib
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

from container.contract.frozen import dataclass
from estimators.service.errors import ServiceError
from estimators.service.s3 import objects
from estimators.service.s3.keys import Bucket

#: The minimum size of each part except the last part, in bytes.
_LEAST = 5 << 20
_PART = re.compile(r"(\d{5})-([0-9a-f]{32})")


@dataclass(frozen=True)
class Part:
    """A received part.

    Attributes:
        number: The number of the part, from 1.
        etag: The MD5 of the part.
        path: The file of the part.
    """

    number: int
    etag: str
    path: Path


@dataclass(frozen=True)
class Upload:
    """A multipart upload.

    Attributes:
        name: The id of the upload.
        key: The key of the object.
        headers: The headers of the object.
        begun: The time at which the upload began, in nanoseconds since 1970.
        folder: The folder of the upload.
    """

    name: str
    key: str
    headers: Mapping[str, str]
    begun: int
    folder: Path

    def parts(self) -> list[Part]:
        """Return the received parts, ordered by number. Parts with the same number are in the order of arrival."""
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
        """Lock the upload during a ``with`` block, so that two requests do not complete the upload at the same time.

        The second request comes from a client that repeats its request because the response takes too long.
        """
        descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with contextlib.suppress(OSError):  # some file systems have no locks
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def begin(bucket: Bucket, key: str, headers: Mapping[str, str]) -> Upload:
    """Create an upload, and return it."""
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
        ServiceError: the upload does not exist, or is for another key.
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
    """Yield the uploads of a bucket, ordered by key and time."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(bucket.uploads):
            with contextlib.suppress(ServiceError):
                found.append(find(bucket, name))
    yield from sorted(found, key=lambda upload: (upload.key, upload.begun))


def add(bucket: Bucket, upload: Upload, number: int, staged: Path, etag: str) -> None:
    """Add a staged file to an upload as a part.

    All parts with the same number are kept, because the client selects one of them at the end.
    """
    try:
        os.replace(staged, upload.folder / f"{number:05d}-{etag}")
    except FileNotFoundError:  # the upload has ended meanwhile
        find(bucket, upload.name)
        raise


def complete(upload: Upload, wanted: Sequence[tuple[int, str]], target: BinaryIO) -> str:
    """Write the content of an upload into a file.

    Args:
        upload: The upload.
        wanted: The numbers and ETags of the parts, ordered by number.
        target: The file to write to.

    Returns:
        The ETag of the object: the MD5 of the parts' MD5s, and the number of parts.

    Raises:
        ServiceError: a part is missing or too small, or the parts are not ordered by number.
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
        (upload.folder / "upload.json").unlink()  # first, because the upload does not exist without this file
    shutil.rmtree(upload.folder, ignore_errors=True)
    bucket.tidy()
