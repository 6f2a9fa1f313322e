"""The bytes of one S3 object, in order, from one ranged request after another."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from container.agent.retrying import BACKOFF, Backoff
from container.agent.s3 import client as s3
from container.agent.s3.errors import explain
from container.agent.sources.base import DataObject, SourceError


class S3Stream:
    """See :class:`container.agent.sources.base.Stream`.

    Args:
        item: The object as it was listed.
        offset: The first byte.
        backoff: How often to try again without any progress.
    """

    def __init__(self, item: DataObject, offset: int = 0, *, backoff: Backoff = BACKOFF) -> None:
        self._item = item
        self._position = offset
        self._backoff = backoff
        self._bucket, self._key = s3.split(item.uri)
        self._client = s3.client()
        self._body: Any = None

    @property
    def position(self) -> int:
        """The offset in the object of the next byte."""
        return self._position

    def readinto(self, buffer: bytearray | memoryview) -> int:
        """Read up to ``len(buffer)`` bytes; fewer come only at the end."""
        view = memoryview(buffer)[: max(self._item.size - self._position, 0)]
        done = failures = 0
        while done < len(view):
            try:
                if self._body is None:
                    self._body = self._request()
                data = self._body.read(len(view) - done)
                if not data:
                    raise ConnectionError("the connection ended early")
            except SourceError:
                raise
            except Exception as error:
                self._drop()
                failures += 1
                if not s3.passes(error) or failures >= self._backoff.attempts:
                    raise explain(self._item.uri, error, offset=self._position) from error
                time.sleep(self._backoff.delay(failures))
                continue
            view[done : done + len(data)] = data
            done += len(data)
            self._position += len(data)
            failures = 0
        if self._position >= self._item.size:
            self._drop()
        return done

    def read(self, size: int) -> bytes:
        """Read up to ``size`` bytes; fewer come only at the end."""
        buffer = bytearray(max(min(size, self._item.size - self._position), 0))
        self.readinto(buffer)
        return bytes(buffer)

    def _request(self) -> Any:
        condition = {"IfMatch": f'"{self._item.identity}"'} if self._item.identity is not None else {}
        answer = self._client.get_object(
            Bucket=self._bucket, Key=self._key, Range=f"bytes={self._position}-{self._item.size - 1}", **condition
        )
        body = answer["Body"]
        if self._item.identity is not None and s3.etag(answer) != self._item.identity:
            body.close()
            raise SourceError(
                self._item.uri, "it changed while the job read it (its ETag is another)", offset=self._position
            )
        return body

    def close(self) -> None:
        """Let go of the connection."""
        self._drop()

    def _drop(self) -> None:
        if self._body is not None:
            with contextlib.suppress(Exception):
                self._body.close()
            self._body = None

    def __enter__(self) -> S3Stream:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
