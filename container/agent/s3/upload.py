"""Write objects to S3 in parts, so that memory stays bounded whatever their size."""

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

#: What is held until it is sent, in bytes; S3 takes parts from 5 MiB on.
PART = 16 << 20
#: S3's bound of parts, with room to spare; parts become larger before it is reached.
_PARTS_OF_A_SIZE = 2000
#: Parts that are on their way while the next one is filled.
_IN_FLIGHT = 2


class S3Upload(io.RawIOBase):
    """A file object whose content becomes an S3 object when it is closed, completely or not at all.

    A small object is one request; a larger one a multipart upload, which is aborted when the block is left by an error.

    Args:
        uri: ``s3://bucket/key``.
        part: How large the first parts are, in bytes.
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
        """Take bytes; sends a part when there is enough for one.

        Raises:
            SourceError: the server does not take it.
        """
        if self._failure is not None:  # whoever closes a file on top of this one writes once more
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
        """Make the object appear.

        Raises:
            SourceError: the server does not take it; nothing of it is left there.
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
        """Leave nothing of it; an object that was there before stays."""
        if not self._done:
            self._done = True
            self._end()
            if self._id is not None:
                with contextlib.suppress(Exception):  # what failed first is what counts
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
            # The answer to one that succeeded may have been lost; the next is told that there is no such upload.
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
                ContentMD5=_md5(body),  # the server refuses what was damaged on the way
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
    """Return a member of an answer; botocore takes a body that was cut before its first byte for an empty one."""
    if member not in answer:
        raise ConnectionError("the answer was cut off")
    return answer[member]


def _md5(body: bytes) -> str:
    return base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
