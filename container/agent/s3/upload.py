"""Write objects to S3 in parts, so that memory use does not grow with the size of an object."""

from __future__ import annotations

import base64
import collections
import concurrent.futures
import contextlib
import hashlib
import io
from collections.abc import Mapping
from typing import Any

from container.agent.s3.client import call, client, split
from container.agent.s3.listing import describe
from container.agent.sources.base import SourceError

#: Size of a part in bytes; S3 requires at least 5 MiB.
PART = 16 << 20
#: The size of the parts doubles each time this number of parts has been sent, so that an upload does not reach S3's
#: maximum number of parts.
_PARTS_OF_A_SIZE = 2000
#: Number of parts that are sent while the next part is filled.
_IN_FLIGHT = 2


class S3Upload(io.RawIOBase):
    """A file object whose content is stored as an S3 object when the ``with`` block ends. The S3 object is either
    complete or not created at all.

    A small object is sent in one request. A larger object is sent as a multipart upload. If the block ends with an
    error, the multipart upload is aborted.

    Args:
        uri: ``s3://bucket/key``.
        part: Size of the first parts in bytes. Later parts are larger, because S3 limits the number of parts.
    """

    def __init__(self, uri: str, *, part: int = PART) -> None:
        super().__init__()
        self.uri = uri
        self.size = 0
        self._bucket, self._key = split(uri)
        self._client = client()
        self._part = part
        self._buffer = bytearray()
        self._id: str | None = None
        self._tags: list[str] = []
        self._under_way: collections.deque[concurrent.futures.Future[str]] = collections.deque()
        self._pool: concurrent.futures.ThreadPoolExecutor | None = None
        self._done = False
        self._failure: Exception | None = None

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        """Write bytes. Send a part when enough bytes for a part were written.

        Raises:
            SourceError: the server refuses the data.
        """
        if self._failure is not None:  # closing a file that wraps this one writes once more
            raise self._failure
        self._buffer += data
        count = memoryview(data).nbytes
        self.size += count
        while len(self._buffer) >= self._size_of_next():
            size = self._size_of_next()
            self._send(bytes(self._buffer[:size]))
            del self._buffer[:size]
        return count

    def tell(self) -> int:
        return self.size

    def commit(self) -> None:
        """Send the remaining bytes, and complete the S3 object.

        Raises:
            SourceError: the server refuses the object.
        """
        if self._id is None:
            body = bytes(self._buffer)
            call(
                self.uri,
                lambda: self._client.put_object(Bucket=self._bucket, Key=self._key, Body=body, ContentMD5=_md5(body)),
            )
        else:
            if self._buffer:
                self._send(bytes(self._buffer))
            self._await(0)
            self._complete()
        self._buffer.clear()
        self._done = True
        self._end()

    def abort(self) -> None:
        """Discard the upload, unless it is complete. An existing object with the same key is not changed."""
        if not self._done:
            self._done = True
            self._end()
            if self._id is not None:
                with contextlib.suppress(Exception):  # the first error is the one that matters
                    self._client.abort_multipart_upload(Bucket=self._bucket, Key=self._key, UploadId=self._id)

    def _size_of_next(self) -> int:
        count = len(self._tags) + len(self._under_way)
        return self._part << min(count // _PARTS_OF_A_SIZE, 6)

    def _send(self, body: bytes) -> None:
        if self._pool is None:
            self._id = call(self.uri, self._create)
            self._pool = concurrent.futures.ThreadPoolExecutor(_IN_FLIGHT, thread_name_prefix="upload")
        self._await(_IN_FLIGHT - 1)
        number = len(self._tags) + len(self._under_way) + 1
        self._under_way.append(self._pool.submit(self._send_part, number, body))

    def _create(self) -> str:
        answer = self._client.create_multipart_upload(Bucket=self._bucket, Key=self._key)
        return str(_whole(answer, "UploadId"))

    def _complete(self) -> None:
        parts = [{"PartNumber": number, "ETag": tag} for number, tag in enumerate(self._tags, 1)]
        attempts = 0

        def complete() -> None:
            nonlocal attempts
            attempts += 1
            answer = self._client.complete_multipart_upload(
                Bucket=self._bucket, Key=self._key, UploadId=self._id, MultipartUpload={"Parts": parts}
            )
            _whole(answer, "ETag")

        try:
            call(self.uri, complete)
        except SourceError:
            # The response to a successful request may have been lost. The retry then gets the error that there is no
            # such upload.
            if attempts < 2 or describe(self.uri).size != self.size:
                raise

    def _send_part(self, number: int, body: bytes) -> str:
        answer: dict[str, Any] = call(
            self.uri,
            lambda: self._client.upload_part(
                Bucket=self._bucket,
                Key=self._key,
                UploadId=self._id,
                PartNumber=number,
                Body=body,
                ContentMD5=_md5(body),  # the server refuses data that was damaged in the transfer
            ),
        )
        return str(answer["ETag"])

    def _await(self, left: int) -> None:
        while len(self._under_way) > left:
            try:
                self._tags.append(self._under_way.popleft().result())
            except Exception as error:
                self._failure = error
                raise

    def _end(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> S3Upload:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        try:
            if kind is None:
                self.commit()
        finally:
            self.abort()


def _whole(answer: Mapping[str, Any], member: str) -> Any:
    """Return a member of a server's response.

    Raises:
        ConnectionError: the member is missing. botocore returns an empty dict if a response's body is cut off before
            its first byte.
    """
    if member not in answer:
        raise ConnectionError("the answer was cut off")
    return answer[member]


def _md5(body: bytes) -> str:
    return base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
