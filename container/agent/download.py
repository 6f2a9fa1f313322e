"""Download S3 objects into the cache. Several objects are downloaded in parallel, resumed after an interruption, and
verified.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import os
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from container.agent import cache, sources
from container.agent.progress import ProgressBar, size
from container.agent.sources.base import DataObject, SourceError
from container.contract.errors import AgentError

#: Number of parallel downloads. With small objects, most of the time is spent waiting for the server.
WORKERS = 8

_CHUNK = 1 << 20
#: Space, in bytes, that must stay free on the disk for logs, checkpoints and other programs.
_SPARE = 256 << 20
_MD5 = re.compile(r"[0-9a-f]{32}")


def download(items: Sequence[DataObject], root: Path, bar: ProgressBar | None = None) -> dict[str, cache.CacheEntry]:
    """Download the objects that are not in the cache yet.

    Args:
        items: The objects.
        root: The cache's folder.
        bar: The progress bar to advance, or None.

    Returns:
        A dict of the complete entries by the objects' URIs.

    Raises:
        SourceError: an object cannot be read, has changed, has no ETag, or does not match its ETag.
        AgentError: the disk is full.
    """
    places: dict[str, cache.CacheEntry] = {}
    missing: list[cache.CacheEntry] = []
    for item in items:
        place = cache.entry(item, root)
        if place is None:
            raise SourceError(
                item.uri, "the server sends no ETag, so a change of the object would go unnoticed", "Use Pipe mode."
            )
        if item.uri not in places:
            places[item.uri] = place
            if not place.complete():
                missing.append(place)
    if not missing:
        return places
    _check_room(root, sum(place.item.size - place.received() for place in missing))
    downloads = _Downloads(bar)
    with concurrent.futures.ThreadPoolExecutor(min(WORKERS, len(missing)), thread_name_prefix="download") as pool:
        futures = [pool.submit(downloads.bring, place) for place in missing]
        try:
            for future in concurrent.futures.as_completed(futures):
                future.result()
        except BaseException:
            downloads.ended.set()  # the other downloads stop at their next chunk and keep their partial files
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return places


class _OtherFailed(Exception):
    """Raised to stop a download because the download of another object has failed."""


class _Downloads:
    """The downloads of several objects, which run in several threads.

    Attributes:
        ended: An event that is set when a download has failed, so that the other downloads stop.
    """

    def __init__(self, bar: ProgressBar | None) -> None:
        self._bar = bar
        self.ended = threading.Event()

    def _advance(self, count: int) -> None:
        if self._bar is not None:
            self._bar.advance(count)

    def bring(self, place: cache.CacheEntry) -> None:
        """Download an entry's object. Stop early, without an error, if the download of another object has failed."""
        try:
            with contextlib.suppress(_OtherFailed):
                self._bring_checked(place)
        except OSError as error:
            raise AgentError(
                f"{place.item.uri!r} could not be downloaded. {place.partial}: {error.strerror}. Free some space "
                "with `fleetfit clean --caches`, or set FLEETFIT_CACHE to a folder on a larger disk."
            ) from error

    def _bring_checked(self, place: cache.CacheEntry) -> None:
        with cache.partial(place) as file:
            if file is None:
                self._advance(place.item.size)
                return
            for last in (False, True):
                digest = self._fetch(place.item, file)
                expected = place.item.identity or ""
                if not _MD5.fullmatch(expected) or digest == expected or _is_encrypted(place.item):
                    place.finish()
                    return
                # Start over once: the file of an earlier run, or the transfer, may be damaged.
                os.ftruncate(file, 0)
                if not last:
                    self._advance(-place.item.size)
            raise SourceError(
                place.item.uri,
                f"its content is damaged: its MD5 is {digest}, but its ETag says {expected}",
                "Upload the object again.",
            )

    def _fetch(self, item: DataObject, file: int) -> str:
        """Download the missing bytes of an object into a file that may already contain the object's beginning.

        Returns:
            The MD5 digest of the complete file, as hexadecimal digits.
        """
        md5 = hashlib.md5(usedforsecurity=False)
        buffer = memoryview(bytearray(_CHUNK))
        have = os.fstat(file).st_size
        if have > item.size:
            os.ftruncate(file, have := 0)
        place = 0
        while place < have:
            count = os.preadv(file, [buffer[: have - place]], place)
            md5.update(buffer[:count])
            place += count
        self._advance(place)
        if place >= item.size:
            return md5.hexdigest()
        with sources.open(item, place) as stream:
            while count := stream.readinto(buffer):
                written = 0
                while written < count:
                    written += os.pwrite(file, buffer[written:count], place + written)
                md5.update(buffer[:count])
                place += count
                self._advance(count)
                if self.ended.is_set():
                    raise _OtherFailed
        return md5.hexdigest()


def _is_encrypted(item: DataObject) -> bool:
    """Return whether the server encrypts the object with a KMS key or with a key that the customer provides.

    The ETag of such an object is not its MD5 digest.
    """
    from container.agent.s3 import client

    bucket, key = client.split(item.uri)
    head: dict[str, Any] = client.call(item.uri, lambda: client.client().head_object(Bucket=bucket, Key=key))
    return head.get("ServerSideEncryption") not in (None, "AES256") or "SSECustomerAlgorithm" in head


def _check_room(root: Path, needed: int) -> None:
    """Validate that the disk has enough space for a download. If the space is not sufficient, first remove the least
    recently used entries of the cache.

    Raises:
        AgentError: the disk has too little space, or the cache's folder cannot be created.
    """
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = os.statvfs(root)
    except OSError as error:
        raise AgentError(f"{root}: {error.strerror}. Set FLEETFIT_CACHE to a writable folder.") from error
    free = status.f_bavail * status.f_frsize
    if needed + _SPARE > free:
        freed = cache.trim(root, max(cache.limit() - needed, 0))
        if needed + _SPARE > free + freed:
            raise AgentError(
                f"{root} has too little space: {size(free + freed)} are free, but the download needs {size(needed)}, "
                f"and {size(_SPARE)} must stay free. Free some space, set FLEETFIT_CACHE to a folder on a larger "
                "disk, or use input_mode='Pipe', which stores nothing on the disk."
            )
