"""Look up the objects that a manifest lists."""

from __future__ import annotations

import codecs
import concurrent.futures
from collections.abc import Iterator

from container.agent.sources import single
from container.agent.sources.base import DataObject, ObjectStream, SourceError
from container.agent.sources.manifests import (
    AugmentedEntry,
    ListingError,
    ManifestEntry,
    parse_augmented,
    parse_manifest,
)
from container.contract.channels import HostChannel

#: Maximum size of a manifest in bytes: the list of objects must fit in memory.
_MANIFEST_LIMIT = 256 << 20
_WORKERS = 16
#: Number of a manifest's objects that are looked up before the first of them is read.
_PAGE = 256
_CHUNK = 1 << 20


def manifest_objects(channel: HostChannel) -> tuple[DataObject, ...]:
    """Look up the objects that the manifest of a ManifestFile channel lists, and return them in the manifest's order.

    Raises:
        SourceError: the manifest cannot be read, or an object does not exist. The message names the manifest's line.
    """
    listed = read_manifest(channel.uri)
    return look_up(channel.uri, listed)


def manifest_pages(channel: HostChannel) -> Iterator[tuple[DataObject, ...]]:
    """Yield the objects of :func:`manifest_objects` page by page."""
    listed = read_manifest(channel.uri)
    for start in range(0, len(listed), _PAGE):
        yield look_up(channel.uri, listed[start : start + _PAGE])


def read_manifest(uri: str) -> tuple[ManifestEntry, ...]:
    """Return the entries of a manifest, without looking up the objects.

    Raises:
        SourceError: the manifest cannot be read or parsed.
    """
    item = single.describe(uri)
    if item.size > _MANIFEST_LIMIT:
        raise SourceError(
            uri, f"it has {item.size:,} bytes; a manifest may have at most {_MANIFEST_LIMIT:,}", "Split the manifest."
        )
    with single.open(item) as stream:
        content = stream.read(item.size)
    try:
        return parse_manifest(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise SourceError(uri, f"line {line} is not UTF-8 text") from None
    except ListingError as error:
        raise SourceError(uri, str(error), "Correct the manifest.") from None


def look_up(manifest: str, listed: tuple[ManifestEntry, ...]) -> tuple[DataObject, ...]:
    """Look up the size and identity of the listed objects, several objects in parallel.

    Raises:
        SourceError: an object does not exist or cannot be read. The message names the first such object in the
            manifest's order, with its line.
    """

    def describe(entry: ManifestEntry) -> DataObject:
        try:
            return single.describe(entry.uri, entry.key)
        except SourceError as error:
            raise SourceError(manifest, f"line {entry.line}: {error}", "Correct the manifest.") from None

    with concurrent.futures.ThreadPoolExecutor(min(_WORKERS, max(len(listed), 1))) as pool:
        futures = [pool.submit(describe, entry) for entry in listed]
        try:
            return tuple(future.result() for future in futures)
        except SourceError:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def augmented_entries(channel: HostChannel) -> Iterator[AugmentedEntry]:
    """Yield an entry for each line of a channel's augmented manifest. See :func:`container.agent.sources.entries`."""
    item = single.describe(channel.uri)
    with single.open(item) as stream:
        try:
            yield from parse_augmented(_lines(channel.uri, stream), channel.attribute_names)
        except ListingError as error:
            raise SourceError(channel.uri, str(error), "Correct the manifest.") from None


def _lines(uri: str, stream: ObjectStream) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    rest = ""
    number = 1
    while True:
        data = stream.read(_CHUNK)
        try:
            rest += decoder.decode(data, final=not data)
        except UnicodeDecodeError:
            raise SourceError(uri, f"the text near line {number} is not UTF-8", offset=stream.position) from None
        *whole, rest = rest.split("\n")
        number += len(whole)
        yield from whole
        if not data:
            if rest:
                yield rest
            return
