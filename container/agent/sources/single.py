"""Describe and open one object, which is a local file or an S3 object."""

from __future__ import annotations

from container.agent.sources.base import DataObject, ObjectStream, SourceError
from container.system.locations import is_s3


def describe(uri: str, key: str = "") -> DataObject:
    """Return one object with its current size and identity.

    Args:
        uri: The object's URI: ``s3://bucket/key``, a ``file://`` URL or a path.
        key: The object's path in the channel. If "", the path is the last part of the object's URI.

    Raises:
        SourceError: the object does not exist, or cannot be read.
    """
    if is_s3(uri):
        from container.agent.s3 import listing

        return listing.describe(uri, key)
    from container.agent.sources import local

    path = local.resolve(uri)
    if path.is_dir():
        raise SourceError(uri, "it is a folder, but a single file is needed")
    return local.describe(path, key or local.name_of(uri))


def open(item: DataObject, offset: int = 0) -> ObjectStream:
    """Open a stream of the object's bytes that begins at an offset.

    Raises:
        SourceError: the object cannot be read, or has changed since it was listed.
    """
    if not 0 <= offset <= item.size:
        raise SourceError(item.uri, f"it has {item.size:,} bytes, so it cannot be read from byte {offset:,}")
    if is_s3(item.uri):
        from container.agent.s3.stream import S3Stream

        return S3Stream(item, offset)
    from container.agent.sources.local import LocalStream

    return LocalStream(item, offset)
