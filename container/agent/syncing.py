"""Synchronise a folder of checkpoints with a prefix of S3 while a job runs (``agent sync``).

* ``down`` downloads the objects under the prefix before the job starts.
* ``up`` uploads new files while the job runs, and all remaining files when standard input ends. As on SageMaker,
  nothing is ever deleted in S3. With ``--what``, ``up`` uploads files other than checkpoints, such as the intermediate
  output. Messages name the files by the value of ``--what``.
* ``out`` runs on a host that does not share the folder with the job's supervisor. It sends new files to the supervisor,
  as frames on standard output. Its standard input begins with a message that lists the files that were sent to the host
  before the job started there.

A checkpoint of the Checkpointer (:mod:`container.checkpoint`) is a folder that appears by a rename. Such a folder is
uploaded as soon as it exists. Its manifest is uploaded last, and a checkpoint without a manifest is not downloaded.
Files that are being staged or deleted are recognised by their names and ignored. Any other file is uploaded when it has
not changed between two checks, or when standard input ends.

S3 has no links. Therefore a link to a file or folder in the folder is uploaded as a copy. The Checkpointer's labels are
such links: a label refers to a checkpoint. The manifest in a label's copy identifies the checkpoint, so that the
download can create the link again. An empty folder is uploaded as a marker: an object whose key ends with a slash.
Markers are uploaded only when standard input ends, because most empty folders are soon filled. ``out`` sends links as
links and empty folders as folders.
"""

from __future__ import annotations

import collections
import contextlib
import fcntl
import io
import os
import select
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from container.agent import sources
from container.agent.progress import ProgressBar, Tell, size, warn
from container.agent.sources.base import DataObject, SourceError
from container.agent.words import Words
from container.contract.errors import AgentError
from container.contract.frames import encode
from container.contract.messages import MessageError, decode
from container.contract.names import is_text
from container.system import saved

USAGE = (
    "agent sync down|up --dir DIR --uri s3://BUCKET/PREFIX --host NAME [--every SECONDS] [--what WORDS] | "
    "agent sync out --dir DIR --host NAME [--every SECONDS]"
)

_CHECKPOINTS = "checkpoints"

#: Environment variable with the number of seconds between two checks; overrides :data:`_EVERY_S`.
EVERY = "FLEETFIT_CHECKPOINT_SYNC_SECONDS"
_EVERY_S = 5.0
_CHUNK = 1 << 20
#: After an error, files are grouped by their top folder. This is the name of the group of files that are in no folder.
_OUTSIDE = "/"


def main(argv: Sequence[str]) -> int:
    """Run the command ``down``, ``up`` or ``out``. ``up`` and ``out`` run until standard input ends and all files are
    transferred.

    Returns:
        0 on success. 1 if a file could not be transferred. 2 if the command line is invalid.
    """
    try:
        direction = argv[0] if argv else ""
        if direction not in ("down", "up", "out"):
            raise ValueError(f"agent sync needs 'down', 'up' or 'out', got {direction!r}")
        words = Words(argv[1:], ("--dir", "--uri", "--host", "--every", "--what"))
        folder, host = Path(words.one("--dir")), words.one("--host")
        uri = words.one("--uri", "" if direction == "out" else None)
        every = _seconds(words.one("--every", os.environ.get(EVERY) or str(_EVERY_S)))
        what = words.one("--what", _CHECKPOINTS)
    except ValueError as error:
        print(f"{error}; usage: {USAGE}", file=sys.stderr)
        return 2

    def tell(line: bytes) -> None:
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()

    try:
        if direction == "down":
            restore(folder, uri, host=host, tell=tell)
        elif direction == "out":
            Sender(folder, host=host, restored=_restored()).run(_until_end_of_input(every))
        else:
            Uploader(folder, uri, host=host, tell=tell, what=what).run(_until_end_of_input(every))
    except (AgentError, MessageError, OSError) as error:
        sys.stdout.flush()
        print(str(error).replace("\n", " "), file=sys.stderr)
        return 1
    return 0


def restore(folder: Path, uri: str, *, host: str, tell: Tell) -> None:
    """Download the objects under a prefix into the folder, and recreate labels and empty folders.

    Files that already exist with the same size are not downloaded. For incomplete checkpoints and outdated objects,
    only a warning is reported.

    Raises:
        AgentError: an object cannot be read, or a file cannot be written.
    """
    from container.agent.s3 import listing

    prefix = uri.rstrip("/") + "/"
    try:
        items = listing.listing(prefix, empty=True, markers=True)
    except SourceError as error:
        raise AgentError(f"the checkpoints cannot be restored: {error}") from None
    markers = [item for item in items if item.key.endswith("/")]
    items = [item for item in items if not item.key.endswith("/")]
    keys = {item.key for item in items}
    labels = _labels(items)
    wanted: list[DataObject] = []
    for item in items:
        top, _, rest = item.key.partition("/")
        parts = item.key.split("/")
        if top in labels or any(part in ("", ".", "..") or saved.PASSING.fullmatch(part) for part in parts):
            continue
        if rest and saved.CHECKPOINT.fullmatch(top) and f"{top}/{saved.MANIFEST}" not in keys:
            if item.key == min(key for key in keys if key.startswith(f"{top}/")):
                warn(tell, host, f"{prefix}{top} is incomplete (its upload was cut off) and is not restored.")
            continue
        wanted.append(item)
    replaced = _replaced(wanted)
    for newer, number in collections.Counter(replaced.values()).items():
        first = next(older for older, by in replaced.items() if by == newer)
        more = f" (and {number - 1:,} more)" if number > 1 else ""
        warn(tell, host, f"{prefix}{first}{more} is not restored: the newer {prefix}{newer} replaces it.")
    wanted = [
        item
        for item in wanted
        if item.key not in replaced
        and not ((target := folder / item.key).is_file() and target.stat().st_size == item.size)
    ]
    for item in markers:
        parts = item.key[:-1].split("/")
        if any("/".join(parts[:count]) in keys for count in range(1, len(parts) + 1)):
            continue  # a file exists at this path
        passing = any(saved.PASSING.fullmatch(part) or part in ("", ".", "..") for part in parts)
        if not passing and not saved.CHECKPOINT.fullmatch(parts[0]) and parts[0] not in labels:
            with contextlib.suppress(FileExistsError, NotADirectoryError):  # another kind of file exists at this path
                os.makedirs(folder / item.key, exist_ok=True)
    for label, name in labels.items():
        if not os.path.lexists(folder / label):
            folder.mkdir(parents=True, exist_ok=True)
            os.symlink(name, folder / label)
    if not wanted:
        return
    bar = ProgressBar(tell, host, "restoring checkpoints", sum(item.size for item in wanted))
    # Manifests come last: after an interruption, no incomplete folder looks complete.
    for item in sorted(wanted, key=lambda item: item.key.endswith(f"/{saved.MANIFEST}")):
        _fetch(item, folder / item.key, bar)
    bar.end(f"{len(wanted):,} files, {size(sum(item.size for item in wanted))} from {uri} in {bar.elapsed:.1f} s")


def _replaced(items: Sequence[DataObject]) -> dict[str, str]:
    """Return the outdated objects: files that were replaced by a folder of the same name, and objects in folders that
    were replaced by a file.

    The outdated objects are still in S3, but a file and a folder cannot both exist under one name in the folder of
    checkpoints.

    Returns:
        The key of the newer object, by the key of the outdated object.
    """
    there = {item.key: item for item in items}
    found = {}
    for item in items:
        for above in map(str, PurePosixPath(item.key).parents):
            if above in there:
                older, newer = sorted((there[above], item), key=lambda each: each.modified or 0.0)
                found[older.key] = newer.key
    return found


def _labels(items: Sequence[DataObject]) -> dict[str, str]:
    """Return the checkpoint that each label refers to. A label is a link in the folder of checkpoints.

    S3 has no links. Therefore a label was uploaded as a copy of its checkpoint. The copy is recognised because its
    manifest equals the checkpoint's manifest.

    Returns:
        A dict of the checkpoints' names by the labels.
    """
    manifests = {}
    for item in items:
        top, _, rest = item.key.partition("/")
        if rest == saved.MANIFEST and item.identity is not None:
            manifests[top] = (item.identity, item.size)
    names = {manifest: top for top, manifest in manifests.items() if saved.CHECKPOINT.fullmatch(top)}
    return {top: names[m] for top, m in manifests.items() if not saved.CHECKPOINT.fullmatch(top) and m in names}


def _fetch(item: DataObject, target: Path, bar: ProgressBar) -> None:
    """Download an object. The file gets the object's modification time, so that later changes of the file can be
    detected.
    """
    partial = target.with_name(".restored.partial")  # the target's own name may already have the maximum length
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with sources.open(item) as stream, open(partial, "wb", buffering=0) as file:
            while chunk := stream.read(_CHUNK):
                file.write(chunk)
                bar.advance(len(chunk))
        if item.modified is not None:
            os.utime(partial, (item.modified, item.modified))
        os.replace(partial, target)
    except OSError as error:
        raise AgentError(
            f"a checkpoint could not be restored from {item.uri!r}. {target}: {error.strerror}."
        ) from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()


class Uploader:
    """An uploader that copies a folder's new files to S3.

    Args:
        folder: The folder, which need not exist yet.
        uri: The prefix of the objects: ``s3://bucket/prefix``.
        host: The host's name, for messages.
        tell: Receives the lines of messages.
        what: Description of the files, for messages.
    """

    _follow = True  # whether to upload the targets of links instead of the links

    def __init__(self, folder: Path, uri: str, *, host: str, tell: Tell, what: str = _CHECKPOINTS) -> None:
        self._folder = folder
        self._prefix = uri.rstrip("/") + "/"
        self._host = host
        self._tell = tell
        self._what = what
        self._up: dict[str, tuple[int, int, int]] = {}
        self._seen: dict[str, tuple[int, int, int]] = {}
        self._warned: set[str] = set()
        self._unread: dict[str, Exception] = {}  # the entries that the last listing could not read

    def run(self, moments: Iterable[None]) -> None:
        """Upload new files whenever a check is due. When the job has ended, upload all remaining files.

        Args:
            moments: An iterator that blocks until the next check is due, and that ends when the job has ended.

        Raises:
            AgentError: a remaining file could not be uploaded. The message names the file.
        """
        # only checkpoints were downloaded, and the size of other files shows little about their changes
        if self._what == _CHECKPOINTS:
            self.mark_restored()
        for _ in moments:
            failed = self.look(final=False)
            for error in dict.fromkeys(failed.values()):
                names = [name for name, cause in failed.items() if cause is error]
                if not self._warned.intersection(names):
                    self._warned.update(names)
                    warn(self._tell, self._host, f"{self._what}: {names[0]!r} could not be uploaded yet: {error}")
        failed = self.look(final=True)
        if failed:
            name, error = next(iter(failed.items()))
            more = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
            raise AgentError(
                f"the upload of the {self._what} failed: {error} {name!r}{more} could not be uploaded from "
                f"{self._folder} to {self._prefix}; {len(self._up)} files were uploaded."
            )
        if self._what == _CHECKPOINTS:
            self.compare()

    def compare(self) -> None:
        """Validate that S3 has all files of the folder.

        The next job relies on these files.

        Raises:
            AgentError: a file is missing in S3 or has a different size there, or S3 cannot be listed.
        """
        from container.agent.s3 import listing

        files = self._files()
        try:
            items = listing.listing(self._prefix, empty=True, markers=True) if files else []
        except SourceError as error:
            raise AgentError(f"fleetfit cannot tell whether all {self._what} were uploaded: {error}") from None
        there = {item.key: item.size for item in items}
        for name, status in files:
            size_here = 0 if name.endswith("/") else status.st_size
            if there.get(name) != size_here:
                size_there = f"has {there[name]:,} bytes" if name in there else "is missing"
                raise AgentError(
                    f"the upload of the {self._what} is not complete: {name!r} of {self._folder} has "
                    f"{size_here:,} bytes, but in {self._prefix} the file {size_there}. Check whether another job "
                    f"writes to {self._prefix}."
                )

    def mark_restored(self) -> None:
        """Record the files of the folder that S3 already has.

        These files were downloaded, or an earlier attempt of the job uploaded them. Ranks may already be writing.
        Therefore a file that is newer than its object is uploaded, even if the sizes are equal.
        """
        from container.agent.s3 import listing

        with contextlib.suppress(SourceError):  # after an error, the first check uploads all files
            there = {item.key: item for item in listing.listing(self._prefix, empty=True)}
            for name, status in self._files():
                item = there.get(name)
                if item is not None and item.size == status.st_size and status.st_mtime <= (item.modified or 0):
                    self._up[name] = _identity(status)

    def look(self, *, final: bool) -> dict[str, Exception]:
        """Upload new files that are complete.

        Args:
            final: Whether this is the last check. The last check uploads all new files.

        Returns:
            The error for each file that could not be uploaded, by the file's name.
        """
        failed: dict[str, Exception] = {}
        causes: dict[str, Exception] = {}  # by top folder; the cause under "" applies to all files
        seen: dict[str, tuple[int, int, int]] = {}
        for name, status in self._files():
            now = _identity(status)
            seen[name] = now
            top = name.partition("/")[0]
            whole = saved.CHECKPOINT.fullmatch(top) is not None and "/" in name
            if self._up.get(name) == now or not (final or whole or self._is_settled(name, now)):
                continue
            # After an error of the server, try no further file: the server may be unreachable for long. After an error
            # of a file, try no further file in the same folder, nor outside of folders: a manifest, or a file such as
            # `latest`, must not be uploaded without the files that it names.
            own = top if "/" in name else _OUTSIDE
            cause = (
                causes.get("") or causes.get(own) or (next(iter(causes.values()), None) if own == _OUTSIDE else None)
            )
            if cause is None:
                try:
                    self._upload(name)
                    continue
                except AgentError as error:
                    cause = causes[""] = error
                except OSError as error:
                    cause = causes[own] = error
            failed[name] = cause
        self._seen = seen
        return {**failed, **self._unread}

    def _is_settled(self, name: str, now: tuple[int, int, int]) -> bool:
        """Return whether a file has not changed since the last check. Return False for an empty folder, which may soon
        be filled.
        """
        return self._seen.get(name) == now and not name.endswith("/")

    def _upload(self, name: str) -> None:
        """Upload a file, unless the file has been deleted in the meantime."""
        path = self._folder / name
        if name.endswith("/"):
            self._mark(name)
            return
        with _kept(path.parent), contextlib.ExitStack() as stack:
            try:
                file = stack.enter_context(open(path, "rb", buffering=0))
            except FileNotFoundError:
                return
            before = os.fstat(file.fileno())
            self._transfer(name, file, before)
            if _identity(os.fstat(file.fileno())) == _identity(before):
                self._up[name] = _identity(before)

    def _mark(self, name: str) -> None:
        """Create the marker of an empty folder in S3."""
        from container.agent.s3.upload import S3Upload

        with S3Upload(f"{self._prefix}{name}"):
            pass

    def _transfer(self, name: str, file: io.FileIO, status: os.stat_result) -> None:
        from container.agent.s3.upload import S3Upload

        if not is_text(name):
            raise OSError("The name of the file is not UTF-8, as the keys of objects in S3 must be.")
        with S3Upload(f"{self._prefix}{name}") as target:
            while chunk := file.read(_CHUNK):
                target.write(chunk)

    def _files(self) -> list[tuple[str, os.stat_result]]:
        """Return all files that may be uploaded.

        Manifests come after the files that they list. Links to folders come after these folders.
        """
        found = []
        self._unread = {}
        for name, status in saved.walk(str(self._folder), follow=self._follow):
            if status is None:
                self._skip(name)
            elif isinstance(status, OSError):
                self._unread[name] = status
            else:
                found.append((name, status))
        return sorted(
            found,
            key=lambda item: (
                stat.S_ISLNK(item[1].st_mode),
                item[0].partition("/")[0],
                item[0].endswith(saved.MANIFEST),
                item[0],
            ),
        )

    def _skip(self, name: str) -> None:
        if name not in self._warned:
            self._warned.add(name)
            warn(
                self._tell,
                self._host,
                f"{self._folder / name} is not uploaded: it is a link, and its target is missing or outside "
                f"{self._folder}.",
            )


class Sender(Uploader):
    """A sender that copies a folder's new files to the job's supervisor, and reports deleted files.

    The messages are:

    * ``file`` with the name, mode and modification time of a file. ``data`` with the file's bytes follows. The last
      message about the file is ``whole``, or ``torn`` if the file changed while it was read.
    * ``link`` with the name and target of a link.
    * ``folder`` with the name of an empty folder.
    * ``gone`` with the name of a deleted file.

    Args:
        folder: The folder, which need not exist yet.
        host: The host's name, for messages.
        restored: The size and the modification time of each file that the supervisor sent to the host, by the file's
            name (see :func:`container.system.saved.files_below`). Ranks may have changed these files already.
    """

    _follow = False

    def __init__(self, folder: Path, *, host: str, restored: Mapping[str, tuple[int, int]]) -> None:
        super().__init__(folder, "", host=host, tell=self._say)
        self._out = sys.stdout.buffer
        self._restored = restored

    def mark_restored(self) -> None:
        """Record the files from the supervisor that have not changed. Files that no longer exist are later reported as
        deleted.
        """
        self._up = {name: (*known, 0) for name, known in self._restored.items()}
        for name, status in self._files():
            if self._restored.get(name) == saved.facts(self._folder / name, status):
                self._up[name] = _identity(status)

    def look(self, *, final: bool) -> dict[str, Exception]:
        """Send new files that are complete, and the names of deleted files. See :meth:`Uploader.look`."""
        failed = super().look(final=final)
        for name in [name for name in self._up if name not in self._seen]:
            del self._up[name]
            self._out.write(encode({"op": "gone", "name": name}))
        self._out.flush()
        return failed

    def _is_settled(self, name: str, now: tuple[int, int, int]) -> bool:
        return self._seen.get(name) == now

    def compare(self) -> None:
        """Do nothing: the supervisor writes the files and reports errors itself, so there is nothing to compare."""

    def _say(self, line: bytes) -> None:
        self._out.write(encode({"op": "say"}, line))

    def _upload(self, name: str) -> None:
        path = os.path.join(self._folder, name)
        try:
            before = os.lstat(path)
            if stat.S_ISLNK(before.st_mode):
                self._out.write(encode({"op": "link", "name": name, "target": saved.target(path)}))
            elif stat.S_ISDIR(before.st_mode):
                self._out.write(encode({"op": "folder", "name": name}))
            else:
                super()._upload(name)
                return
        except FileNotFoundError:  # deleted since it was found
            return
        self._up[name] = _identity(before)

    def _transfer(self, name: str, file: io.FileIO, status: os.stat_result) -> None:
        self._out.write(
            encode({"op": "file", "name": name, "mode": status.st_mode & 0o777, "time": status.st_mtime_ns})
        )
        while chunk := file.read(_CHUNK):
            self._out.write(encode({"op": "data"}, chunk))
        changed = _identity(os.fstat(file.fileno())) != _identity(status)
        self._out.write(encode({"op": "torn" if changed else "whole"}))


@contextlib.contextmanager
def _kept(folder: Path) -> Iterator[None]:
    """Hold a shared lock on a folder if possible, so that the Checkpointer does not delete the folder."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        yield
        return
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _until_end_of_input(every: float) -> Iterator[None]:
    """Yield every ``every`` seconds until standard input ends.

    The caller keeps standard input open while the job runs.
    """
    while not select.select([0], [], [], every)[0] or os.read(0, 1024):
        yield


def _restored() -> dict[str, tuple[int, int]]:
    """Read the only message on standard input: the files that were sent to the host before the job started there.

    Returns:
        The size and the modification time of each file, by the file's name.

    Raises:
        MessageError: the input ends before the message is complete.
    """
    line = bytearray()
    while not line.endswith(b"\n") and (data := os.read(0, _CHUNK)):
        line += data
    return {name: (size, time) for name, (size, time) in decode(bytes(line))["files"].items()}


def _identity(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ino


def _seconds(every: str) -> float:
    try:
        seconds = float(every)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise ValueError(f"--every and {EVERY} must be a number of seconds above 0; got {every!r}")
    return seconds
