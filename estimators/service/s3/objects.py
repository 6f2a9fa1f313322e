"""Read and write the content and metadata of objects. The metadata are ETag, content type and the user's metadata.

The metadata is stored in an extended attribute of the file, and is valid as long as the file's size and time are
unchanged. A file that was changed, or that was not written by the server, therefore has no stored metadata. If such a
file is small, its MD5 is computed when its ETag is needed. If the file is large, its ETag is computed from size and
time. Like the ETag of a multipart upload, this ETag is not an MD5. On file systems without extended attributes, the
metadata is kept in memory.
"""

from __future__ import annotations

import base64
import collections
import contextlib
import dataclasses
import errno
import hashlib
import json
import mimetypes
import os
import threading
import time
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from container.contract.frozen import dataclass
from estimators.service.errors import ServiceError
from estimators.service.s3.keys import Bucket

CHUNK = 1 << 20

_ATTRIBUTE = "user.fleetfit.s3"
#: Number of objects whose metadata is kept in memory if files cannot store metadata.
_REMEMBERED = 100_000
#: Headers of a request that belong to the object, and are returned with it.
_OWN_HEADERS = (
    "content-type",
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "expires",
)
_MINE = "x-amz-meta-"
#: The maximum size in bytes of a file for which an MD5 is computed, if the server has not written the file. Computing
#: MD5s of larger files would make lists of objects too slow.
_COMPUTED = 1 << 20
#: The duration of a tick of the file system's clock, in nanoseconds. If a file changes twice within a tick, both
#: changes have the same time. Therefore an MD5 is stored only if the file's last change is older than a tick.
_TICK_NS = 100_000_000
#: The maximum size of the metadata that a file can store on ext4, in bytes.
_NOTE_LIMIT = 3500
#: Errors that mean that a file cannot store metadata.
_NO_ATTRIBUTES = (errno.ENOTSUP, errno.EPERM, errno.EACCES, errno.EROFS)
#: The maximum size of the user metadata that S3 accepts, in bytes.
_METADATA_LIMIT = 2048


@dataclass(frozen=True)
class Described:
    """The metadata of an object.

    Attributes:
        size: The size in bytes.
        modified: The time of the last write, in nanoseconds since 1970.
        etag: The ETag, without quotes.
        headers: The headers that belong to the object, such as content type and user metadata. The names are in lower
            case.
    """

    size: int
    modified: int
    etag: str
    headers: Mapping[str, str]


#: The metadata of files that cannot store it.
_memory: collections.OrderedDict[tuple[int, ...], bytes] = collections.OrderedDict()
_remembering = threading.Lock()


def own_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of a request that are stored with the object.

    Raises:
        ServiceError: the user metadata exceeds S3's limit.
    """
    mine = {name: value for name, value in headers.items() if name.startswith(_MINE)}
    if sum(len(name) - len(_MINE) + len(value) for name, value in mine.items()) > _METADATA_LIMIT:
        raise _too_large()
    kept = {"content-type": "binary/octet-stream", **{name: headers[name] for name in _OWN_HEADERS if name in headers}}
    coding = [part.strip() for part in kept.pop("content-encoding", "").split(",") if part.strip()]
    if coding := [part for part in coding if part != "aws-chunked"]:  # aws-chunked applies only to the transfer
        kept["content-encoding"] = ",".join(coding)
    return {**kept, **mine}


def describe(file: BinaryIO, key: str) -> Described:
    """Return the metadata of an open object."""
    number = file.fileno()
    state = os.fstat(number)
    known = _read(number, state)
    if known is None and state.st_size <= _COMPUTED:
        etag = digest_of(file)
        after = os.fstat(number)
        known = Described(after.st_size, after.st_mtime_ns, etag, {})
        if _identity(after) == _identity(state) and time.time_ns() - state.st_mtime_ns > _TICK_NS:
            _note(number, state, etag, {})
    return _with_type(known or _unread(state), key)


def glance(path: Path, key: str) -> Described | None:
    """Return the metadata of an object for a list of objects. Return None if the object was deleted.

    If the object cannot be read, return the metadata that is known without reading it.
    """
    try:
        with _open(path) as file:
            return describe(file, key)
    except PermissionError:
        with contextlib.suppress(OSError):
            return _with_type(_unread(os.lstat(path)), key)
    except ServiceError:
        pass
    return None


def _unread(state: os.stat_result) -> Described:
    etag = hashlib.md5(repr(_identity(state)).encode(), usedforsecurity=False).hexdigest()
    return Described(state.st_size, state.st_mtime_ns, f"{etag}-1", {})


def _with_type(described: Described, key: str) -> Described:
    kind, coding = mimetypes.guess_type(key)
    guessed = kind if kind is not None and coding is None else "binary/octet-stream"
    return dataclasses.replace(described, headers={"content-type": guessed, **described.headers})


def receive(body: BinaryIO, file: BinaryIO, headers: Mapping[str, str], digest: str) -> str:
    """Write a request's content into a file, and verify the content's checksums.

    Args:
        body: The content.
        file: The file to write to.
        headers: The request's headers, which may contain checksums.
        digest: The signed SHA-256 of the content. If the text is not a SHA-256, it is ignored.

    Returns:
        The MD5 of the content, in hexadecimal form.

    Raises:
        ServiceError: a checksum does not match.
    """
    md5 = hashlib.md5(usedforsecurity=False)
    hashes: dict[str, Any] = {
        "content-md5": md5,
        "x-amz-checksum-sha1": hashlib.sha1(usedforsecurity=False),
        "x-amz-checksum-sha256": hashlib.sha256(),
        "x-amz-checksum-crc32": _Crc32(),
    }
    hashes = {name: one for name, one in hashes.items() if one is md5 or name in headers}
    signed = hashlib.sha256() if len(digest) == 64 else None
    while chunk := body.read(CHUNK):
        for one in hashes.values():
            one.update(chunk)
        if signed is not None:
            signed.update(chunk)
        file.write(chunk)
    if signed is not None and signed.hexdigest() != digest.lower():
        raise other_content()
    for name, one in hashes.items():
        shown = "Content-MD5" if one is md5 else name
        if name in headers and one.digest() != _decoded(headers[name], shown):
            raise ServiceError("BadDigest", f"The {shown} you specified did not match the calculated checksum.")
    return md5.hexdigest()


@contextlib.contextmanager
def staging(bucket: Bucket) -> Iterator[tuple[Path, BinaryIO]]:
    """Create a file that becomes an object or a part of a multipart upload.

    At the end of the ``with`` block, the file is removed unless the block has moved the file.

    Yields:
        The path of the file, and the open file.
    """
    path, file = bucket.stage()
    try:
        with file:
            yield path, file
    finally:
        bucket.discard(path)


def finish(file: BinaryIO, etag: str, headers: Mapping[str, str]) -> Described:
    """Store and return the metadata of a staged file whose content is complete.

    Args:
        file: The file.
        etag: The ETag of the content.
        headers: The headers that belong to the object.
    """
    file.flush()
    return _note(file.fileno(), os.fstat(file.fileno()), etag, headers, ours=True)


def copy(source: BinaryIO, target: BinaryIO, start: int, count: int) -> None:
    """Append a part of a file to another file, within the kernel if possible."""
    target.flush()
    while count:
        try:
            done = os.copy_file_range(source.fileno(), target.fileno(), min(count, 1 << 30), start)
        except OSError:  # not supported between these file systems
            piece = os.pread(source.fileno(), min(count, CHUNK), start)
            done = os.write(target.fileno(), piece)
        if not done:
            raise ServiceError("InternalError", "The object's file became shorter while it was copied.", 500)
        start += done
        count -= done


def open_object(bucket: Bucket, key: str) -> BinaryIO:
    """Open an object.

    Raises:
        ServiceError: the object does not exist.
    """
    path = bucket.find(key)
    if path is None:
        raise _no_such_key()
    return _open(path)


def _open(path: Path) -> BinaryIO:
    try:
        return open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb")
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):  # removed since it was found
            raise _no_such_key() from None
        raise


def _no_such_key() -> ServiceError:
    return ServiceError("NoSuchKey", "The specified key does not exist.", 404)


def digest_of(file: BinaryIO) -> str:
    """Return the MD5 of an open file, in hexadecimal form."""
    file.flush()
    found = hashlib.md5(usedforsecurity=False)
    start = 0
    while chunk := os.pread(file.fileno(), CHUNK, start):
        found.update(chunk)
        start += len(chunk)
    return found.hexdigest()


def other_content() -> ServiceError:
    """Return the error for content that differs from the signed content."""
    return ServiceError(
        "XAmzContentSHA256Mismatch", "The provided 'x-amz-content-sha256' header does not match what was computed."
    )


class _Crc32:
    def __init__(self) -> None:
        self._value = 0

    def update(self, data: bytes) -> None:
        self._value = zlib.crc32(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(4, "big")


def _decoded(text: str, name: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise ServiceError("InvalidDigest", f"The {name} you specified is not valid.") from None


def _read(number: int, state: os.stat_result) -> Described | None:
    """Return the stored metadata of a file. Return None if there is no metadata or it is no longer valid."""
    try:
        noted = os.getxattr(number, _ATTRIBUTE)
    except OSError:
        noted = _memory.get(_identity(state)) or b"{}"
    try:
        found = json.loads(noted)
        described = Described(found["size"], found["modified"], found["etag"], found["headers"])
    except (ValueError, TypeError, KeyError):  # none, or not written by this server
        return None
    return described if (described.size, described.modified) == (state.st_size, state.st_mtime_ns) else None


def _note(
    number: int, state: os.stat_result, etag: str, headers: Mapping[str, str], *, ours: bool = False
) -> Described:
    """Store the metadata of a file, in the file or in memory.

    Args:
        number: The descriptor of the file.
        state: The result of :func:`os.fstat` for the file.
        etag: The ETag of the file.
        headers: The headers that belong to the object.
        ours: Whether the server has written the file. In this case, an error of the disk is raised. Otherwise, or if
            the file system has no extended attributes, the metadata is stored in memory instead.

    Raises:
        ServiceError: the metadata is too large.
        OSError: the metadata cannot be written to the disk, for example because the disk is full.
    """
    described = Described(state.st_size, state.st_mtime_ns, etag, headers)
    noted = json.dumps(dataclasses.asdict(described), ensure_ascii=False).encode("utf-8", "surrogatepass")
    if len(noted) > _NOTE_LIMIT:
        raise _too_large()
    try:
        os.setxattr(number, _ATTRIBUTE, noted)
    except OSError as error:
        if ours and error.errno not in _NO_ATTRIBUTES:
            raise
        with _remembering:
            _memory[_identity(state)] = noted
            if len(_memory) > _REMEMBERED:
                _memory.popitem(last=False)
    return described


def _too_large() -> ServiceError:
    return ServiceError("MetadataTooLarge", "Your metadata headers exceed the maximum allowed metadata size.")


def _identity(state: os.stat_result) -> tuple[int, ...]:
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns
