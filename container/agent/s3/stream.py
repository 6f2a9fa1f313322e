"""Read one S3 object in order, with ranged requests that resume after an interruption.

An object on a server on this machine is read with one connection, because more connections would use processor time
that the server needs. An object on another server is read with several connections, because one connection to S3 is
slower than the network. The environment variable ``FLEETFIT_S3_CONNECTIONS`` sets a different number of connections.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import os
import threading
import urllib.parse
from typing import Any

from container.agent.retrying import BACKOFF
from container.agent.s3 import client as s3
from container.agent.sources.base import DataObject, ObjectStream, SourceError

CONNECTIONS = "FLEETFIT_S3_CONNECTIONS"

#: Size of the parts that one connection reads ahead, in bytes. A stream holds at most one such part for each
#: connection, and the part that is being read.
PART = 8 << 20
#: Maximum size of a read in bytes. The client only returns complete reads, so that the bytes of an unfinished read are
#: lost if the server goes silent. After each failure, reads become smaller, down to the minimum, so that fewer bytes
#: are lost.
_READ = 128 << 10
_LEAST_READ = 1 << 10
_FAR_CONNECTIONS = 4
_MOST_CONNECTIONS = 64
_LOOPBACK = ("localhost", "127.", "::1")


def connections() -> int:
    """Return the number of connections for one large object.

    Raises:
        SourceError: ``FLEETFIT_S3_CONNECTIONS`` is not a valid number.
    """
    configured = os.environ.get(CONNECTIONS, "")
    if configured:
        if not configured.isdecimal() or not 1 <= int(configured) <= _MOST_CONNECTIONS:
            raise SourceError(
                "s3://", f"{CONNECTIONS}={configured!r} is not a number from 1 to {_MOST_CONNECTIONS}", "Correct it."
            )
        return int(configured)
    host = urllib.parse.urlsplit(str(s3.client().meta.endpoint_url)).hostname or ""
    return 1 if host.startswith(_LOOPBACK) else _FAR_CONNECTIONS


class Range:
    """A reader of a range of an object's bytes. The reader uses only one connection at a time.

    Args:
        item: The object as it was listed.
        start: The offset of the first byte.
        stop: The offset after the last byte.
        ended: An event that another thread sets to stop the retries.
    """

    def __init__(
        self,
        item: DataObject,
        start: int,
        stop: int,
        ended: threading.Event | None = None,
    ) -> None:
        self.position = start
        self._item = item
        self._stop = stop
        self._ended = ended if ended is not None else threading.Event()
        self._bucket, self._key = s3.split(item.uri)
        self._client = s3.client()
        self._body: Any = None
        self._piece = _READ

    def readinto(self, view: memoryview) -> int:
        """Fill ``view`` with bytes, and return their number. The number is smaller than ``len(view)`` only at the end
        of the range.
        """
        view = view[: max(self._stop - self.position, 0)]
        done = failures = 0
        while done < len(view):
            try:
                if self._body is None:
                    self._body = self._request()
                data = self._body.read(min(len(view) - done, self._piece))
                if not data:
                    raise ConnectionError("the connection ended early")
            except SourceError:
                raise
            except Exception as error:
                self.close()
                failures += 1
                if not s3.passes(error) or failures >= BACKOFF.attempts or self._ended.is_set():
                    raise s3.explain(self._item.uri, error, offset=self.position) from error
                self._piece = max(self._piece // 2, _LEAST_READ)
                self._ended.wait(BACKOFF.delay(failures))
                continue
            view[done : done + len(data)] = data
            done += len(data)
            self.position += len(data)
            self._piece = min(2 * self._piece, _READ)
            failures = 0
        if self.position >= self._stop:
            self.close()
        return done

    def _request(self) -> Any:
        identity = self._item.identity
        answer = self._client.get_object(
            Bucket=self._bucket,
            Key=self._key,
            Range=f"bytes={self.position}-{self._stop - 1}",
            **({"IfMatch": f'"{identity}"'} if identity is not None else {}),
        )
        problem = self._problem(answer)
        if problem is not None:
            answer["Body"].close()
            raise SourceError(
                self._item.uri, problem, "Start the job again when the object is complete.", offset=self.position
            )
        return answer["Body"]

    def _problem(self, answer: dict[str, Any]) -> str | None:
        """Return the reason why a server's response does not contain the requested bytes of the listed object.

        Return None if the response contains these bytes.
        """
        identity = self._item.identity
        if identity is not None and s3.etag(answer) != identity:
            return "it changed while the job read it (its ETag differs)"
        place, _, size = str(answer.get("ContentRange") or "").removeprefix("bytes ").partition("/")
        if size.isdecimal() and int(size) != self._item.size:
            return f"it has {int(size):,} bytes now, but had {self._item.size:,} when the job began"
        if place and place != f"{self.position}-{self._stop - 1}":
            return f"the server sent the bytes {place} instead of {self.position}-{self._stop - 1}"
        if not place and (self.position, self._stop) != (0, self._item.size):
            return "the server does not support range requests"
        return None

    def close(self) -> None:
        """Close the server's response.

        The connection can be reused only if the response was read completely.
        """
        if self._body is not None:
            with contextlib.suppress(Exception):
                self._body.close()
            self._body = None


class S3Stream(ObjectStream):
    """A stream of the bytes of an S3 object."""

    def __init__(self, item: DataObject, offset: int = 0) -> None:
        super().__init__(item, offset)
        self._reader: Range | _Parts
        count = connections() if item.size - offset > 2 * PART else 1
        self._reader = _Parts(item, offset, count) if count > 1 else Range(item, offset, item.size)

    def readinto(self, buffer: bytearray | memoryview) -> int:
        done = self._reader.readinto(memoryview(buffer)[: max(self._item.size - self.position, 0)])
        self.position += done
        return done

    def close(self) -> None:
        """Close the connections."""
        self._reader.close()


class _Parts:
    """A reader of an object that returns the object's parts in order. Several connections read the parts ahead."""

    def __init__(self, item: DataObject, offset: int, count: int) -> None:
        self._item = item
        self._next = offset
        self._count = count
        self._ended = threading.Event()
        self._pool = concurrent.futures.ThreadPoolExecutor(count, thread_name_prefix="s3-part")
        self._ahead: collections.deque[concurrent.futures.Future[memoryview]] = collections.deque()
        self._part = memoryview(b"")

    def readinto(self, view: memoryview) -> int:
        """Fill ``view`` with bytes, and return their number. The number is smaller than ``len(view)`` only at the end
        of the object.
        """
        done = 0
        while done < len(view):
            if not len(self._part):
                self._ask()
                if not self._ahead:
                    break
                self._part = self._ahead.popleft().result()
                self._ask()
            count = min(len(self._part), len(view) - done)
            view[done : done + count] = self._part[:count]
            self._part = self._part[count:]
            done += count
        return done

    def _ask(self) -> None:
        while len(self._ahead) < self._count and self._next < self._item.size:
            start, self._next = self._next, min(self._next + PART, self._item.size)
            self._ahead.append(self._pool.submit(self._fetch, start, self._next))

    def _fetch(self, start: int, stop: int) -> memoryview:
        buffer = memoryview(bytearray(stop - start))
        reader = Range(self._item, start, stop, self._ended)
        try:
            reader.readinto(buffer)
        finally:
            reader.close()
        return buffer

    def close(self) -> None:
        self._ended.set()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._ahead.clear()
        self._part = memoryview(b"")
