"""File mode: a channel as a folder of each host's tree.

Local data is linked, never copied. S3 is downloaded into the cache, and the trees get hard links to it. A host of a
ShardedByS3Key channel gets its share of the objects.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

from container.agent import AgentError, cache, sources
from container.agent.download import download
from container.agent.progress import Progress, size
from container.agent.sources import local
from container.agent.sources.base import DataObject
from container.agent.sources.manifests import key_problem
from container.contract.channels import Channel, DataDistribution, DataType
from container.contract.sharding import deal, imbalance, shuffled
from container.contract.wire import Event
from container.locations import is_s3

Tell = Callable[[bytes], None]


def prepare(channel: Channel, hosts: Sequence[tuple[str, Path]], *, tell: Tell) -> None:
    """Put a channel into the hosts' trees; what an earlier attempt put there is kept or replaced.

    Args:
        channel: The channel.
        hosts: Each host's name and the channel's folder in its tree, in rank order: all hosts of the job.
        tell: Takes progress and warnings.

    Raises:
        AgentError: the data cannot be read, or something of another kind is in its place.
        OSError: the trees cannot be written.
    """
    whole = channel.data_type is DataType.PREFIX and channel.distribution is DataDistribution.REPLICATED
    if whole and not is_s3(channel.uri):
        source = local.resolve(channel.uri)
        for _, place in hosts:
            if source.is_dir():
                _make_link(source, place, channel)
            else:
                _clear(place, channel)
                _make_folder(place)
                (place / source.name).symlink_to(source)
        return
    items = sources.objects(channel)
    check_keys(channel.uri, items)
    shares = share(channel, items, len(hosts))
    if channel.distribution is DataDistribution.SHARDED:
        uneven = imbalance([sum(item.size for item in part) for part in shares])
        if uneven is not None:
            text = f"channel {channel.name!r}, ShardedByS3Key: {uneven}"
            tell(Event(kind="warning", host=hosts[0][0], data={"message": text}).to_line())
    entries = _bring(channel, items, hosts[0][0], tell)
    copied = False
    for (_, place), part in zip(hosts, shares, strict=True):
        copied |= _fill(place, part, entries, channel)
    if copied:
        text = f"channel {channel.name!r}: copied from the cache, as {cache.folder()} is on another file system."
        tell(Event(kind="warning", host=hosts[0][0], data={"message": text}).to_line())
    if entries:
        cache.trim(cache.folder(), cache.limit())


def share(channel: Channel, items: Sequence[DataObject], hosts: int) -> list[tuple[DataObject, ...]]:
    """Each host's objects."""
    if channel.distribution is DataDistribution.REPLICATED:
        return [tuple(items)] * hosts
    dealt = shuffled(items, channel.shuffle_seed, 0)
    return [deal(dealt, hosts, host) for host in range(hosts)]


def check_keys(uri: str, items: Sequence[DataObject]) -> None:
    """Refuse keys that cannot be files beside each other in one folder.

    Raises:
        SourceError: a key is no path, two are the same, or one is a file and a folder.
    """
    taken: dict[str, DataObject] = {}
    for item in items:
        problem = key_problem(item.key)
        if problem is not None:
            raise sources.SourceError(item.uri, f"its key {problem}", "Use input_mode='Pipe', or rename it.")
        if item.key in taken:
            raise sources.SourceError(
                uri, f"{taken[item.key].name} and {item.name} would be the same file, {item.key!r}", "Rename one."
            )
        taken[item.key] = item
    for item in items:
        for above in PurePosixPath(item.key).parents:
            if (other := taken.get(str(above))) is not None:
                raise sources.SourceError(
                    uri, f"{other.name} would be a file and the folder of {item.name}", "Rename one, or use Pipe mode."
                )


def _bring(channel: Channel, items: Sequence[DataObject], host: str, tell: Tell) -> dict[str, cache.Entry]:
    remote = [item for item in items if is_s3(item.uri)]
    if not remote:
        return {}
    root = cache.folder()
    wanted = {item.uri: item for item in remote}.values()
    cached = sum(item.size for item in wanted if (place := cache.entry(item, root)) is not None and place.complete())
    total = sum(item.size for item in wanted)
    bar = Progress(tell, host, f"channel {channel.name!r}", total - cached)
    entries = download(remote, root, advance=bar.advance)
    came = f"{size(total - cached)} downloaded in {bar.elapsed:.1f} s" if total > cached or not cached else ""
    kept = f"{size(cached)} from the cache" if cached else ""
    count = f"{len(wanted):,} object{'s' if len(wanted) != 1 else ''}"
    bar.end(f"{count}, {', '.join(part for part in (came, kept) if part)}")
    return entries


def _fill(place: Path, items: Sequence[DataObject], entries: dict[str, cache.Entry], channel: Channel) -> bool:
    """Make a host's folder of links; returns whether something had to be copied."""
    _clear(place, channel)
    _make_folder(place)
    folders = {""}
    copied = False
    for item in items:
        parent = item.key.rpartition("/")[0]
        if parent not in folders:
            os.makedirs(place / parent, exist_ok=True)
            folders.add(parent)
        entry = entries.get(item.uri)
        if entry is None:
            (place / item.key).symlink_to(item.uri)
        else:
            copied |= not cache.put(entry, place / item.key)
    return copied


def fill(place: Path, items: Sequence[DataObject], channel: Channel, path: Callable[[DataObject], str]) -> None:
    """Make a host's folder of links to where the objects are as files."""
    _clear(place, channel)
    _make_folder(place)
    for item in items:
        target = place / item.key
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(path(item))


def _make_link(source: Path, place: Path, channel: Channel) -> None:
    if place.is_symlink() and os.readlink(place) == str(source):
        return
    _clear(place, channel)
    place.symlink_to(source)


def _make_folder(place: Path) -> None:
    place.mkdir(parents=True)
    mark = _mark(place)
    mark.parent.mkdir(exist_ok=True)
    mark.touch()


def _mark(place: Path) -> Path:
    """Tells that we made a channel's folder and another attempt may make it again; outside of what scripts list."""
    return place.parent.parent / ".channels" / place.name


def _clear(place: Path, channel: Channel) -> None:
    """Remove what an earlier attempt put there.

    Raises:
        AgentError: it is somebody else's.
    """
    if place.is_symlink():
        place.unlink()
    elif place.is_dir() and (_mark(place).is_file() or not any(place.iterdir())):
        shutil.rmtree(place)
    elif place.exists():
        raise AgentError(f"channel {channel.name!r}: {place} is there already and is not ours; remove it.")
