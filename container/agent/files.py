"""Provide channels in File mode: each host's tree has its own folder, as on SageMaker.

The folder contains copies of local files or of cached S3 objects. Therefore a script may write into the folder. If the
file system supports shared blocks, the copies share their blocks with the originals. For a ShardedByS3Key channel, each
host gets only some of the objects. In FastFile mode, local data is linked instead of copied.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath

from container.agent import cache, sources
from container.agent.download import download
from container.agent.progress import ProgressBar, Tell, size, warn
from container.agent.sources import local
from container.agent.sources.base import DataObject
from container.agent.sources.manifests import key_problem
from container.contract.channels import DataDistribution, DataType, HostChannel, InputMode
from container.contract.errors import AgentError
from container.contract.frozen import dataclass
from container.contract.sharding import deal, imbalance, shuffled
from container.system.copying import clones, copy_file
from container.system.locations import is_s3
from container.system.removing import remove_tree

#: Copies that take less than this time are not reported, in seconds.
_SLOW_S = 1.0
#: Space that must stay free after copying, in bytes, for the files that the job writes. If the data is smaller than
#: this, only as much space as the data needs must stay free.
_SPARE = 256 << 20


def prepare(
    channel: HostChannel,
    hosts: Sequence[tuple[str, Path]],
    *,
    tell: Tell,
    everybody: bool = False,
    place: tuple[int, int] | None = None,
) -> None:
    """Put a channel into the hosts' trees, and replace the files of an earlier attempt.

    Args:
        channel: The channel.
        hosts: Pairs of a host's name and the channel's folder in the host's tree, in the order of the hosts' ranks.
        tell: Receives the lines of progress and warnings.
        everybody: Whether any user may write into the channel, because a container may run as any user.
        place: The host's number and the number of hosts, if ``hosts`` has only one of several hosts. None if ``hosts``
            has all hosts of the job.

    Raises:
        AgentError: the data cannot be read, the disk has too little space, or the channel's folder has content that
            fleetfit did not create.
        OSError: the trees cannot be written.
    """
    limit = cache.limit()  # an error is raised before the download
    whole = channel.data_type is DataType.PREFIX and channel.distribution is DataDistribution.REPLICATED
    if whole and not is_s3(channel.uri):
        if channel.mode is InputMode.FAST_FILE:
            _link_whole(channel, [place for _, place in hosts])
            return
        items, folders = local.tree(channel.uri)
        if not items:
            warn(tell, hosts[0][0], f"channel {channel.name!r}: {channel.uri!r} has no files.")
    else:
        items, folders = list(sources.objects(channel)), []
        check_keys(channel.uri, items)
    number, total = place or (0, len(hosts))
    shares = share(channel, items, total)
    if channel.distribution is DataDistribution.SHARDED and number == 0:
        uneven = imbalance([sum(item.size for item in part) for part in shares])
        if uneven is not None:
            text = f"channel {channel.name!r}, ShardedByS3Key: {uneven}"
            warn(tell, hosts[0][0], text)
    if place is not None:
        shares = shares[number : number + 1]
        items = list(shares[0])
    entries = _bring(channel, items, hosts[0][0], tell)
    copies: list[_Copy] = []
    for (_, folder), part in zip(hosts, shares, strict=True):
        copies += _fill(folder, part, folders, entries, channel)
    _copy_all(copies, channel, hosts, tell, everybody=everybody)
    if entries:
        cache.trim(cache.folder(), limit)


def share(channel: HostChannel, items: Sequence[DataObject], hosts: int) -> list[tuple[DataObject, ...]]:
    """Return, for each host, the objects that the host reads."""
    if channel.distribution is DataDistribution.REPLICATED:
        return [tuple(items)] * hosts
    dealt = shuffled(items, channel.shuffle_seed, 0)
    return [deal(dealt, hosts, host) for host in range(hosts)]


def check_keys(uri: str, items: Sequence[DataObject]) -> None:
    """Raise an error if the objects cannot be stored as files in one folder.

    Raises:
        SourceError: a key is not a valid path, two objects have the same key, or one object's key is a folder of
            another key.
    """
    taken: dict[str, DataObject] = {}
    for item in items:
        problem = key_problem(item.key)
        if problem is not None:
            raise sources.SourceError(item.uri, f"its key {problem}", "Use input_mode='Pipe', or rename the object.")
        if item.key in taken:
            raise sources.SourceError(
                uri,
                f"{taken[item.key].name} and {item.name} would be the same file, {item.key!r}",
                "Rename one of the objects.",
            )
        taken[item.key] = item
    for item in items:
        for above in PurePosixPath(item.key).parents:
            if (other := taken.get(str(above))) is not None:
                raise sources.SourceError(
                    uri,
                    f"{other.name} is an object, but would also be the folder of {item.name}",
                    "Rename one of the objects, or use Pipe mode.",
                )


def _bring(channel: HostChannel, items: Sequence[DataObject], host: str, tell: Tell) -> dict[str, cache.CacheEntry]:
    remote = [item for item in items if is_s3(item.uri)]
    if not remote:
        return {}
    root = cache.folder()
    wanted = {item.uri: item for item in remote}.values()
    cached = sum(item.size for item in wanted if (place := cache.entry(item, root)) is not None and place.complete())
    total = sum(item.size for item in wanted)
    bar = ProgressBar(tell, host, f"channel {channel.name!r}", total - cached)
    entries = download(remote, root, bar)
    came = f"{size(total - cached)} downloaded in {bar.elapsed:.1f} s" if total > cached or not cached else ""
    kept = f"{size(cached)} from the cache" if cached else ""
    count = f"{len(wanted):,} object{'s' if len(wanted) != 1 else ''}"
    bar.end(f"{count}, {', '.join(part for part in (came, kept) if part)}")
    return entries


@dataclass(frozen=True)
class _Copy:
    """A file to copy to a host.

    Attributes:
        item: The object.
        entry: The object's entry in the cache, or None for a local file.
        target: The path of the copy.
    """

    item: DataObject
    entry: cache.CacheEntry | None
    target: str

    @property
    def source(self) -> str:
        return self.item.uri if self.entry is None else os.fspath(self.entry.path)


def _fill(
    place: Path,
    items: Sequence[DataObject],
    folders: Iterable[str],
    entries: dict[str, cache.CacheEntry],
    channel: HostChannel,
) -> list[_Copy]:
    """Create a host's folder for a channel, with its subfolders. In FastFile mode, also create links to local files.

    Returns:
        The copies that the caller must make in the folder.
    """
    _clear(place, channel)
    _make_folder(place)
    made = {""}
    copies = []
    for folder in folders:
        os.makedirs(place / folder, exist_ok=True)
        made.add(folder)
    for item in items:
        parent = item.key.rpartition("/")[0]
        if parent not in made:
            os.makedirs(place / parent, exist_ok=True)
            made.add(parent)
        entry = entries.get(item.uri)
        if entry is None and channel.mode is InputMode.FAST_FILE:
            (place / item.key).symlink_to(item.uri)
        else:
            copies.append(_Copy(item, entry, f"{place}/{item.key}"))
    return copies


def _copy_all(
    copies: Sequence[_Copy], channel: HostChannel, hosts: Sequence[tuple[str, Path]], tell: Tell, *, everybody: bool
) -> None:
    """Copy the files. Report the progress if copying takes long.

    Raises:
        AgentError: the disk has too little space for the copies.
        OSError: a file cannot be copied.
    """
    total = sum(copy.item.size for copy in copies)
    _check_room(copies, total, channel, hosts)
    local_data = not is_s3(channel.uri)
    bar = ProgressBar(tell, hosts[0][0], f"channel {channel.name!r}, copied", total, first_s=_SLOW_S)
    for copy in copies:
        mode = 0o666 if everybody else 0o600
        try:
            copy_file(copy.source, copy.target, mode=mode, advance=bar.advance)
        except FileNotFoundError:
            if copy.entry is None:
                raise
            # Another job has removed the entry from the cache, to make space.
            download([copy.item], cache.folder())
            copy_file(copy.source, copy.target, mode=mode, advance=bar.advance)
    if everybody:
        for _, place in hosts:
            for folder, _, _ in os.walk(place):
                os.chmod(folder, 0o777)
    if bar.shown:
        each = f"for {len(hosts)} hosts " if len(hosts) > 1 else ""
        remedy = "; input_mode='FastFile' needs no copy" if local_data else ""
        bar.end(f"{size(total)} {each}in {bar.elapsed:.1f} s{remedy}")


def _check_room(copies: Sequence[_Copy], total: int, channel: HostChannel, hosts: Sequence[tuple[str, Path]]) -> None:
    place = hosts[0][1]
    room = os.statvfs(place)
    free = room.f_bavail * room.f_frsize
    if total + min(_SPARE, total) <= free:
        return
    total = sum(map(_size_on_disk, copies))
    spare = min(_SPARE, total)
    if total + spare <= free:
        return
    largest = max(copies, key=lambda copy: copy.item.size)
    if clones(largest.source, largest.target):
        return
    remedy = (
        "set input_mode='FastFile', which needs no copy"
        if not is_s3(channel.uri)
        else ("set input_mode='Pipe' or 'FastFile', which need no disk space")
    )
    each = f" for {len(hosts)} hosts" if len(hosts) > 1 else ""
    raise AgentError(
        f"the disk of {place} has too little space: {size(free)} are free, but File mode copies {size(total)}{each}, "
        f"and {size(spare)} must stay free for the job. Free some space, or {remedy}."
    )


def _size_on_disk(copy: _Copy) -> int:
    """Return the number of bytes that a copy needs on the disk. Holes in a sparse file need no space."""
    return min(copy.item.size, os.stat(copy.source).st_blocks * 512)


def fill(place: Path, items: Mapping[str, DataObject], channel: HostChannel, *, everybody: bool = False) -> None:
    """Create a host's folder for a channel, and fill it with links to files.

    Args:
        place: The folder.
        items: The objects, by the paths of the files that the links refer to.
        channel: The channel.
        everybody: Whether any user may read the folder, because a container may run as any user.
    """
    _clear(place, channel)
    _make_folder(place)
    for path, item in items.items():
        target = place / item.key
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(path)
    if everybody:
        for folder, _, _ in os.walk(place):
            os.chmod(folder, 0o755)


def _link_whole(channel: HostChannel, places: Sequence[Path]) -> None:
    source = local.resolve(channel.uri)
    for place in places:
        if source.is_dir():
            _make_link(source, place, channel)
        else:
            _clear(place, channel)
            _make_folder(place)
            (place / local.name_of(channel.uri)).symlink_to(source)


def _make_link(source: Path, place: Path, channel: HostChannel) -> None:
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
    """Return the file that marks a channel's folder as created by fleetfit.

    A later attempt of the job may replace a marked folder. The marking file is outside of the folder, so that scripts
    do not see this file.
    """
    return place.parent.parent / ".channels" / place.name


def _clear(place: Path, channel: HostChannel) -> None:
    """Remove the channel's folder or link that an earlier attempt of the job has created.

    Raises:
        AgentError: the folder was not created by fleetfit.
    """
    if place.is_symlink():
        place.unlink()
    elif place.is_dir() and (_mark(place).is_file() or not any(place.iterdir())):
        remove_tree(place)
    elif place.exists():
        raise AgentError(f"channel {channel.name!r}: {place} exists already and was not made by fleetfit. Remove it.")
