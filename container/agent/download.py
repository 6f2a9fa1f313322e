"""Download S3 objects into the cache: several at a time, resumed where they were cut, and verified."""

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

#: Objects that are downloaded at a time. Small ones wait for the server more than for the network.
WORKERS = 8

_CHUNK = 1 << 20
#: Room that is left on the disk for logs, checkpoints and everybody else, in bytes.
_SPARE = 256 << 20
_MD5 = re.compile(r"[0-9a-f]{32}")


def download(
    items: Sequence[DataObject], root: Path, bar: ProgressBar | None = None, *, workers: int = WORKERS
) -> dict[str, cache.CacheEntry]:
    """Bring objects into the cache.

    Args:
        items: The objects.
        root: The cache's folder.
        bar: Shows how much has come.
        workers: How many objects at a time.

    Returns:
        URI -> entry, each complete.

    Raises:
        SourceError: an object cannot be read, changed, or is not what its ETag says.
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
    _check_room(root, sum(place.item.size for place in missing))
    downloads = _Downloads(bar)
    with concurrent.futures.ThreadPoolExecutor(min(workers, len(missing)), thread_name_prefix="download") as pool:
        futures = [pool.submit(downloads.bring, place) for place in missing]
        try:
            for future in concurrent.futures.as_completed(futures):
                future.result()
        except BaseException:
            downloads.ended.set()  # the others end at their next chunk and keep what they have
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return places


class _OtherFailed(Exception):
    """Raised when another object has failed, so that this download stops."""


class _Downloads:
    """Several downloads, each in a thread of its own.

    Attributes:
        ended: Set when one has failed, so that the others stop.
    """

    def __init__(self, bar: ProgressBar | None) -> None:
        self._bar = bar
        self.ended = threading.Event()

    def _advance(self, count: int) -> None:
        if self._bar is not None:
            self._bar.advance(count)

    def bring(self, place: cache.CacheEntry) -> None:
        """Complete an entry, unless another object has failed."""
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
                # Start over once: what an earlier run left may be damaged, or a byte on the way.
                os.ftruncate(file, 0)
                if not last:
                    self._advance(-place.item.size)
            raise SourceError(
                place.item.uri,
                f"its content is damaged: its MD5 is {digest}, but its ETag says {expected}",
                "Upload the object again.",
            )

    def _fetch(self, item: DataObject, file: int) -> str:
        """Complete a file, which may hold the beginning of the object already; returns its MD5."""
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
    """Return whether the server encrypts the object with a customer's key: then its ETag is not its MD5."""
    from container.agent.s3 import client

    bucket, key = client.split(item.uri)
    head: dict[str, Any] = client.call(item.uri, lambda: client.client().head_object(Bucket=bucket, Key=key))
    return head.get("ServerSideEncryption") not in (None, "AES256") or "SSECustomerAlgorithm" in head


def _check_room(root: Path, needed: int) -> None:
    """Refuse early what the disk cannot hold.

    Raises:
        AgentError: it cannot, or the cache's folder cannot be made.
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
