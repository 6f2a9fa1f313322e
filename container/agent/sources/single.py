"""Describe and open one object, local or in S3."""

from __future__ import annotations

from container.agent.sources.base import DataObject, ObjectStream, SourceError
from container.system.locations import is_s3


def describe(uri: str, key: str = "") -> DataObject:
    """Look up one object as it is now.

    Args:
        uri: ``s3://bucket/key``, a ``file://`` URL or a path.
        key: Its path in the channel; default: its name.

    Raises:
        SourceError: there is none, or it cannot be read.
    """
    if is_s3(uri):
        from container.agent.s3 import listing

        return listing.describe(uri, key)
    from container.agent.sources import local

    path = local.resolve(uri)
    if path.is_dir():
        raise SourceError(uri, "it is a folder, but a single file is needed")
    return local.describe(path, key or path.name)


def open(item: DataObject, offset: int = 0) -> ObjectStream:
    """Open the object's bytes from an offset on.

    Raises:
        SourceError: it cannot be read, or is not what was listed.
    """
    if not 0 <= offset <= item.size:
        raise SourceError(item.uri, f"it has {item.size:,} bytes, so it cannot be read from byte {offset:,}")
    if is_s3(item.uri):
        from container.agent.s3.stream import S3Stream

        return S3Stream(item, offset)
    from container.agent.sources.local import LocalStream

    return LocalStream(item, offset)
