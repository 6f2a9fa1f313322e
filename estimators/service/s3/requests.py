"""Represent S3 requests and responses, independently of the HTTP server."""

from __future__ import annotations

import dataclasses
import email.utils
import hashlib
import re
import urllib.parse
from collections.abc import Mapping
from typing import BinaryIO

from container.contract.frozen import dataclass
from estimators.service.errors import ServiceError
from estimators.service.s3 import documents, objects
from estimators.service.s3.objects import Described

#: The maximum size of an XML document in a request, in bytes. It is enough for 10,000 parts or 1,000 keys.
_DOCUMENT_LIMIT = 4 << 20
#: The longest key, in bytes.
_KEY_LIMIT = 1024

_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


@dataclass(frozen=True)
class Request:
    """A request of a client.

    Attributes:
        method: The HTTP method.
        bucket: The bucket's name. Empty for the list of buckets.
        key: The key of the object. Empty for the bucket itself.
        query: The parameters of the query.
        headers: The headers, as a dict with lower-case names.
        body: The content of the request.
        digest: The signed digest of the content, or a keyword for how the content is signed.
        region: The region in the signature.
    """

    method: str
    bucket: str
    key: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: BinaryIO
    digest: str
    region: str

    def document(self) -> bytes:
        """Read the whole content of the request.

        Raises:
            ServiceError: the content is too long, or differs from the signed content.
        """
        data = bytearray()
        while chunk := self.body.read(1 << 16):
            data += chunk
            if len(data) > _DOCUMENT_LIMIT:
                raise ServiceError("EntityTooLarge", f"The document is longer than {_DOCUMENT_LIMIT} bytes.")
        if len(self.digest) == 64 and hashlib.sha256(data).hexdigest() != self.digest.lower():
            raise objects.other_content()
        return bytes(data)

    def number(self, name: str, default: int, least: int, most: int) -> int:
        """Return a numeric parameter. A number above ``most`` is replaced by ``most``.

        Raises:
            ServiceError: the parameter is not a number, or is below ``least``.
        """
        text = self.query.get(name) or str(default)
        if not re.fullmatch(r"\d{1,9}", text, re.ASCII) or not least <= int(text):
            raise ServiceError("InvalidArgument", f"{name} must be a number, at least {least}.")
        return min(int(text), most)


@dataclasses.dataclass
class Reply:
    """The response to a request.

    Attributes:
        status: The HTTP status.
        headers: The headers except Content-Length, as a dict with lower-case names.
        content: The content, if ``file`` is None.
        file: The file to send. The sender closes the file.
        start: The offset in the file of the first byte to send.
        count: The number of bytes of the file to send.
    """

    status: int = 200
    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    content: bytes = b""
    file: BinaryIO | None = None
    start: int = 0
    count: int = 0


def split(path: str) -> tuple[str, str]:
    """Return the bucket and the key of a path.

    Raises:
        ServiceError: the path is not UTF-8, or the key is too long.
    """
    try:
        text = urllib.parse.unquote_to_bytes(path).decode("utf-8")
    except UnicodeDecodeError:
        raise ServiceError("InvalidURI", "Couldn't parse the specified URI.") from None
    bucket, _, key = text.removeprefix("/").partition("/")
    check_key(key)
    return bucket, key


def parameters(query: str) -> dict[str, str]:
    """Return the parameters of a query. If a name is repeated, its first value is used."""
    found: dict[str, str] = {}
    for name, value in urllib.parse.parse_qsl(query, keep_blank_values=True):
        found.setdefault(name, value)
    return found


def check_key(key: str) -> None:
    """Check that a key is not too long.

    Raises:
        ServiceError: the key is too long.
    """
    if len(key.encode("utf-8")) > _KEY_LIMIT:
        raise ServiceError("KeyTooLongError", "Your key is too long")


def document(root: documents.Node) -> Reply:
    """Return a response that contains an XML document."""
    return Reply(headers={"content-type": "application/xml"}, content=documents.write(root))


def object_headers(described: Described) -> dict[str, str]:
    """Return the response headers that describe an object."""
    return {
        **described.headers,
        "etag": f'"{described.etag}"',
        "last-modified": email.utils.formatdate(documents.seconds(described.modified), usegmt=True),
        "accept-ranges": "bytes",
    }


def check_conditions(headers: Mapping[str, str], described: Described | None, prefix: str = "") -> None:
    """Check the conditions of a request against the current object.

    Args:
        headers: The headers of the request.
        described: The metadata of the object. None if the object does not exist.
        prefix: The prefix of the headers' names, for conditions on the source of a copy.

    Raises:
        ServiceError: a condition does not hold.
    """
    match, none_match = headers.get(prefix + "if-match"), headers.get(prefix + "if-none-match")
    if match is not None and described is None:
        raise ServiceError("NoSuchKey", "The specified key does not exist.", 404)
    if match is not None and not _names(match, described):
        raise _precondition_failed()
    if none_match is not None and _names(none_match, described):
        raise _precondition_failed()
    if described is None:
        return
    seconds = described.modified // 1_000_000_000
    until, since = (_seconds(headers.get(f"{prefix}if-{word}-since")) for word in ("unmodified", "modified"))
    if match is None and until is not None and seconds > until:
        raise _precondition_failed()
    if none_match is None and since is not None and seconds <= since:
        raise _precondition_failed()


def part_of(text: str | None, size: int) -> tuple[int, int] | None:
    """Return the start and the length of a requested range. Return None for the whole object.

    Args:
        text: The header of the request that names the range. None if the request has no such header.
        size: The size of the object in bytes.

    Raises:
        ServiceError: the range is beyond the end of the object.
    """
    match = _RANGE.fullmatch((text or "").strip())
    if match is None or match.group() == "bytes=-":  # other kinds of ranges are ignored, as on S3
        return None
    first, last = match.groups()
    if first:
        start, end = int(first), min(int(last) if last else size, size - 1)
        if last and int(last) < start:
            return None
    else:
        start, end = max(size - int(last), 0), size - 1
    if start > end:
        raise ServiceError("InvalidRange", "The requested range is not satisfiable", 416)
    return start, end - start + 1


def _names(tags: str, described: Described | None) -> bool:
    given = [tag.strip().removeprefix("W/").strip('"') for tag in tags.split(",")]
    return described is not None and ("*" in given or described.etag in given)


def _seconds(text: str | None) -> float | None:
    try:
        return email.utils.parsedate_to_datetime(text).timestamp() if text else None
    except (ValueError, OverflowError):
        return None


def _precondition_failed() -> ServiceError:
    return ServiceError("PreconditionFailed", "At least one of the pre-conditions you specified did not hold", 412)
