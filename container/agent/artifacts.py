"""Pack a job's ``model.tar.gz`` and ``output.tar.gz`` from the trees of all its hosts."""

from __future__ import annotations

import contextlib
import filecmp
import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from container.agent.progress import ProgressBar, Tell, size, warn
from container.contract.environment import host_name
from container.contract.errors import AgentError
from container.contract.frozen import dataclass
from container.contract.layout import MLTree
from container.contract.names import listed
from container.contract.wire import Event
from container.system.copying import link_within
from container.system.holding import hold
from container.system.locations import LocationError, is_s3, local_path

if TYPE_CHECKING:
    import tarfile

MODEL = "model.tar.gz"
OUTPUT = "output.tar.gz"

#: gzip's fastest level: weights hardly compress, and users wait for the end of a job.
_LEVEL = 1
_CHUNK = 1 << 20
_NAMED = 5  # maximum number of paths in one warning


@dataclass(frozen=True)
class Folder:
    """A folder on one host. The folder's content is packed into an archive."""

    host: str
    path: Path


@dataclass(frozen=True)
class ArchiveEntry:
    """One path in an archive.

    Attributes:
        name: The path in the archive.
        path: The path on the host.
        status: ``os.lstat`` of the path.
        link: The link's target, if the path is a link. Otherwise None.
        host: The host that has the path.
    """

    name: str
    path: str
    status: os.stat_result
    link: str | None
    host: str


def collect(base_dirs: Sequence[Path], output: str, *, tell: Tell) -> tuple[str | None, str | None]:
    """Pack the hosts' models and outputs.

    If two hosts have the same path with different contents, the first host's content is packed, and a warning is
    reported.

    Args:
        base_dirs: The hosts' trees, in rank order.
        output: The folder or the S3 prefix for the archives: a path, a ``file://`` URL or ``s3://bucket/prefix``. A
            folder that does not exist is created.
        tell: Receives the lines to print: progress, warnings, and at the end the event ``artifacts`` with the paths or
            URIs of the archives.

    Returns:
        The paths or URIs of ``model.tar.gz`` and ``output.tar.gz``. An archive that would be empty is not written, and
        None is returned for it.

    Raises:
        AgentError: the archives cannot be written. No incomplete archive remains. The message names the folders of the
            unpacked files.
    """
    trees = [MLTree(base_dir) for base_dir in base_dirs]
    hosts = [host_name(tree, index) for index, tree in enumerate(trees)]
    try:
        target = output.rstrip("/") if is_s3(output) else str(local_path(output))
    except LocationError as error:
        raise AgentError(f"the output folder: {error}") from None

    packed: dict[str, str | None] = {}
    for name, paths in ((MODEL, [tree.model for tree in trees]), (OUTPUT, [tree.output_data for tree in trees])):
        folders = [Folder(host, path) for host, path in zip(hosts, paths, strict=True)]
        if is_s3(target):
            packed[name] = upload(folders, f"{target}/{name}", tell)
        else:
            archive = pack(folders, Path(target) / name, tell)
            packed[name] = str(archive) if archive is not None else None
    said = {name.partition(".")[0]: place for name, place in packed.items() if place is not None}
    tell(Event(kind="artifacts", host=hosts[0], data=said).to_line())
    return packed[MODEL], packed[OUTPUT]


def upload(folders: Sequence[Folder], uri: str, tell: Tell) -> str | None:
    """Pack the union of the folders directly into an object of S3. The object appears only when it is complete.

    Args:
        folders: The hosts' folders, as for :func:`pack`.
        uri: The URI of the object.
        tell: Receives progress lines and warnings.

    Returns:
        ``uri``, or None if there is nothing to pack.

    Raises:
        AgentError: as for :func:`collect`.
    """
    from container.agent.s3.upload import S3Upload

    where = f"The unpacked files are in {', '.join(str(folder.path) for folder in folders)}."
    try:
        entries = union(folders, tell)
        if not entries:
            return None
        total = sum(entry.status.st_size for entry in entries if stat.S_ISREG(entry.status.st_mode))
        bar = ProgressBar(tell, folders[0].host, f"uploading {uri.rpartition('/')[2]}", total)
        with S3Upload(uri) as target:
            _write(entries, target, bar)
        bar.end(f"{size(target.size)} to {uri} in {bar.elapsed:.1f} s")
    except OSError as error:
        raise AgentError(
            f"the archive {uri} could not be made. {error.filename or uri}: {error.strerror or error}. {where}"
        ) from error
    except AgentError as error:
        raise AgentError(f"the upload failed: {error} {where}") from error
    return uri


def pack(folders: Sequence[Folder], archive: Path, tell: Tell) -> Path | None:
    """Pack the union of the folders into one archive. The archive appears under its name only when it is complete.

    Args:
        folders: The hosts' folders. If several folders have the same path, the first folder's content is packed. A
            folder that does not exist is treated as empty.
        archive: The ``.tar.gz`` file to write. An existing file is replaced.
        tell: Receives warnings.

    Returns:
        ``archive``, or None if there is nothing to pack.

    Raises:
        AgentError: as for :func:`collect`.
    """
    # A partial file of an agent that was killed is overwritten. This is safe, because only one agent of a job packs
    # archives.
    partial = archive.with_name(f".{archive.name}.partial")
    try:
        entries = union(folders, tell)
        if not entries:
            return None
        archive.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(partial, "wb") as file:
                _write(entries, file)
            hold("agent.before_commit")
            os.replace(partial, archive)
        finally:
            with contextlib.suppress(OSError):  # already renamed
                partial.unlink()
    except OSError as error:
        place = error.filename if isinstance(error.filename, str) and error.filename != str(partial) else archive
        if isinstance(error, NotADirectoryError):
            where = "A file is in the place of this folder. Write the files into the folder, and do not replace it."
        else:
            where = f"The unpacked files are in {', '.join(str(folder.path) for folder in folders)}."
        raise AgentError(
            f"the archive {archive} could not be made. {place}: {error.strerror or error}. {where}"
        ) from error
    return archive


def union(folders: Sequence[Folder], tell: Tell) -> list[ArchiveEntry]:
    """Return the folders' entries, sorted by path. Report the entries that cannot be packed in warnings.

    If several folders have the same path, only the first folder's entry is returned, and a warning is reported if the
    contents differ. Links that lead out of their folder, and special files such as sockets, cannot be packed.
    """
    found: dict[str, ArchiveEntry] = {}
    shadowed: dict[str, list[str]] = {}
    for folder in folders:
        taken: dict[str, ArchiveEntry] = {}
        skipped: list[str] = []
        for entry in _walk(folder, skipped):
            first = found.get(entry.name)
            above = next((found[name] for name in _parents(entry.name) if name in found), None)
            if above is not None and not stat.S_ISDIR(above.status.st_mode):
                shadowed.setdefault(folder.host, []).append(entry.name)
            elif first is None:
                taken[entry.name] = entry
            elif not _same(first, entry):
                shadowed.setdefault(folder.host, []).append(entry.name)
        found.update(taken)
        if skipped:
            warn(
                tell,
                folder.host,
                f"{folder.path}: these entries are not packed: {_names(skipped)}. Each entry is a link that leads "
                "out of the folder, or is not a regular file.",
            )
    for folder in folders:
        if names := shadowed.get(folder.host):
            warn(
                tell,
                folder.host,
                f"{folder.path}: these entries are not packed: {_names(names)}. The archive has a different file, "
                "from another host, under the same path.",
            )
    return sorted(found.values(), key=lambda entry: entry.name.split("/"))


def _walk(folder: Folder, skipped: list[str]) -> Iterable[ArchiveEntry]:
    """Yield the entries below a folder. Each folder is yielded before its content.

    Entries that cannot be packed are not yielded. Their paths are appended to ``skipped``.
    """
    root = os.path.realpath(folder.path)
    waiting = [root]
    while waiting:
        current = waiting.pop()
        try:
            names = sorted(os.listdir(current))
        except FileNotFoundError:
            if current == root:
                return
            raise
        for name in names:
            path = os.path.join(current, name)
            inner = os.path.relpath(path, root)
            status = os.lstat(path)
            link = None
            if stat.S_ISLNK(status.st_mode):
                link = link_within(path, root)
            elif stat.S_ISDIR(status.st_mode):
                waiting.append(path)
            if stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode) or link is not None:
                yield ArchiveEntry(inner, path, status, link, folder.host)
            else:
                skipped.append(inner)


def _parents(name: str) -> Iterable[str]:
    while "/" in name:
        name = name.rpartition("/")[0]
        yield name


def _same(first: ArchiveEntry, second: ArchiveEntry) -> bool:
    """Return whether two entries of the same path have the same content."""
    one, other = first.status, second.status
    if stat.S_IFMT(one.st_mode) != stat.S_IFMT(other.st_mode):
        return False
    if not stat.S_ISREG(one.st_mode):
        return first.link == second.link
    if (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino):
        return True
    return filecmp.cmp(first.path, second.path, shallow=False)


def _write(entries: Sequence[ArchiveEntry], file: Any, bar: ProgressBar | None = None) -> None:
    """Write the archive. Entries with equal names, contents, permissions and modification times result in equal bytes.

    Args:
        entries: The entries of the archive.
        file: The file object to write to.
        bar: The progress bar to advance, or None.
    """
    import gzip
    import tarfile

    with gzip.GzipFile(filename="", mode="wb", compresslevel=_LEVEL, fileobj=file, mtime=0) as packed:
        with tarfile.TarFile(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT, copybufsize=_CHUNK) as tar:
            for entry in entries:
                _add(tar, tarfile.TarInfo(entry.name), entry)
                if bar is not None and stat.S_ISREG(entry.status.st_mode):
                    bar.advance(entry.status.st_size)


def _add(tar: tarfile.TarFile, info: tarfile.TarInfo, entry: ArchiveEntry) -> None:
    import tarfile

    info.mode = stat.S_IMODE(entry.status.st_mode)
    info.mtime = int(entry.status.st_mtime)
    if entry.link is not None:
        info.type, info.linkname = tarfile.SYMTYPE, entry.link
        tar.addfile(info)
    elif stat.S_ISDIR(entry.status.st_mode):
        info.type = tarfile.DIRTYPE
        tar.addfile(info)
    else:
        with open(entry.path, "rb") as content:
            info.size = os.fstat(content.fileno()).st_size
            try:
                tar.addfile(info, content)
            except OSError as error:
                if error.filename is None and "unexpected end of data" in str(error):  # tarfile's message
                    raise OSError(
                        0, "the file became shorter while it was read: a program still writes to it", entry.path
                    ) from error
                raise


def _names(names: Sequence[str]) -> str:
    return listed([repr(name) for name in names], _NAMED)
