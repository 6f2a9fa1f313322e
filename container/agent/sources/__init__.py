"""Where a channel's data comes from: folders, files and S3, listed and streamed.

::

    from container.agent import sources

    for item in sources.shuffled(sources.objects(channel), seed=7, epoch=0):
        with sources.open(item) as stream:
            while count := stream.readinto(buffer):
                ...

A stream continues by itself after a connection that was cut, a 503 and a server that went silent; it checks that the
object is the one that was listed, and has its size. What cannot be helped is a :class:`SourceError`.
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
    """Return the channel's objects, not shuffled, in SageMaker's order: by key, or as the manifest lists them.

    An augmented manifest is one object here; :func:`entries` reads its lines.

    Raises:
        SourceError: there are none, or the place, the manifest or an object in it cannot be read.
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

    return tuple(local.listing(channel.uri))


def in_order(channel: HostChannel, failed: Callable[[Exception], None]) -> Iterable[DataObject]:
    """Iterate over :func:`objects`, the first of them before the rest are listed where the source has that order.

    Args:
        channel: The channel.
        failed: Takes the error that ended the list later than here.

    Raises:
        SourceError: as for :func:`objects`, as far as it is seen at once.
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
    """Yield the lines of an augmented manifest with the attributes that the channel reads.

    Raises:
        SourceError: the manifest cannot be read, or a line is wrong; the message names the line.
    """
    from container.agent.sources import listed

    return listed.augmented_entries(channel)
