"""List and stream a channel's data from its source: folders, files or S3.

::

    from container.agent import sources

    for item in sources.shuffled(sources.objects(channel), seed=7, epoch=0):
        with sources.open(item) as stream:
            while count := stream.readinto(buffer):
                ...

A stream resumes by itself after an interrupted connection, an error 503, or a server's silence. The stream verifies
that the object has not changed since it was listed, and has the listed size. Other failures raise a
:class:`SourceError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from container.agent.sources.base import DataObject, ObjectStream, SourceError
from container.agent.sources.single import describe, open
from container.contract.channels import DataType, HostChannel
from container.contract.sharding import shuffled
from container.system.locations import is_s3

if TYPE_CHECKING:
    from container.agent.sources.manifests import AugmentedEntry

__all__ = [
    "DataObject",
    "ObjectStream",
    "SourceError",
    "describe",
    "entries",
    "in_order",
    "objects",
    "open",
    "shuffled",
]


def objects(channel: HostChannel) -> tuple[DataObject, ...]:
    """Return the channel's objects in SageMaker's order before shuffling: sorted by key, or as the manifest lists them.

    For an augmented manifest, return the manifest itself as one object. :func:`entries` reads the manifest's lines.

    Raises:
        SourceError: the channel has no objects. Also raised if the folder, the bucket, the manifest or an object in the
            manifest cannot be read.
    """
    if channel.data_type is DataType.MANIFEST:
        from container.agent.sources import listed

        return listed.manifest_objects(channel)
    if channel.data_type is DataType.AUGMENTED_MANIFEST:
        return (describe(channel.uri),)
    if is_s3(channel.uri):
        from container.agent.s3 import listing

        return tuple(listing.listing(channel.uri))
    from container.agent.sources import local

    found = tuple(local.listing(channel.uri))
    if not found:
        raise SourceError(channel.uri, "the folder has no files")
    return found


def in_order(channel: HostChannel, failed: Callable[[Exception], None]) -> Iterable[DataObject]:
    """Return an iterable over the channel's objects, in the same order as :func:`objects`.

    If the source lists its objects in this order, the first objects are available before the rest is listed.

    Args:
        channel: The channel.
        failed: Called with the error if the rest of the objects cannot be listed.

    Raises:
        SourceError: as for :func:`objects`, if the error occurs in the first page.
    """
    if channel.data_type is DataType.MANIFEST:
        from container.agent.sources import listed
        from container.agent.sources.growing import Growing

        return Growing(listed.manifest_pages(channel), failed)
    if channel.data_type is DataType.PREFIX and is_s3(channel.uri):
        from container.agent.s3 import listing
        from container.agent.sources.growing import Growing

        if listing.is_sorted(channel.uri):
            return Growing(listing.pages(channel.uri), failed)
    return objects(channel)


def entries(channel: HostChannel) -> Iterator[AugmentedEntry]:
    """Yield, for each line of an augmented manifest, the attributes that the channel reads.

    Raises:
        SourceError: the manifest cannot be read, or a line is invalid. The message names the line.
    """
    from container.agent.sources import listed

    return listed.augmented_entries(channel)
