"""``agent sync``: keeps a folder of checkpoints and a prefix of S3 in step while a job runs.

Of the intermediate output it brings up what is new, with ``--what``, which says what it is. ``out`` brings what is new
to the job's supervisor, as frames on standard output: from a host that does not share the folder with it. Its standard
input begins with a message that says which files were brought to the host before anything ran there.

At the start what is in S3 comes down; while the job runs new files go up; at the end (of standard input) the rest does.
As on SageMaker, nothing is ever deleted in S3.

A checkpoint of the Checkpointer's is a folder that appears by a rename: it goes up as soon as it is there, its manifest
last, and one without a manifest does not come down. What is being staged or deleted is left alone, by its name. Any
other file goes up when it has not changed between two looks, or at the end.

A link to something in the folder is a copy in S3, which has no links; what the Checkpointer's label refers to is
recognised by its manifest when it comes down. An empty folder is a marker there, an object whose key ends in a slash,
which goes up at the end only: most are filled soon. ``out`` sends links, and empty folders.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import select
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from container.agent import sources
from container.agent.progress import ProgressBar, Tell, size, warn
from container.agent.sources.base import DataObject, SourceError
from container.contract.errors import AgentError
from container.contract.frames import encode
from container.contract.messages import MessageError, decode
from container.system import saved

USAGE = (
    "agent sync down|up --dir DIR --uri s3://BUCKET/PREFIX --host NAME [--every SECONDS] [--what WORDS] | "
    "agent sync out --dir DIR --host NAME [--every SECONDS]"
)

_CHECKPOINTS = "checkpoints"

#: Seconds between two looks; overrides :data:`_EVERY_S`.
EVERY = "FLEETFIT_CHECKPOINT_SYNC_SECONDS"
_EVERY_S = 5.0
_CHUNK = 1 << 20


def main(argv: Sequence[str]) -> int:
    """Run ``down`` to its end, or ``up`` until standard input ends and everything is up.

    Returns:
        0, 1 when something could not be brought, 2 for a wrong command line.
    """
    try:
        direction, folder, uri, host, every, what = _parse(argv)
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
    """Bring what is in S3 into the folder; files that are there with the same size stay.

    Raises:
        AgentError: it cannot be read or written.
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
        target = folder / item.key
        if not (target.is_file() and target.stat().st_size == item.size):
            wanted.append(item)
    for item in markers:
        parts = item.key[:-1].split("/")
        if any("/".join(parts[:count]) in keys for count in range(1, len(parts) + 1)):
            continue  # a file was there before
        passing = any(saved.PASSING.fullmatch(part) or part in ("", ".", "..") for part in parts)
        if not passing and not saved.CHECKPOINT.fullmatch(parts[0]) and parts[0] not in labels:
            with contextlib.suppress(FileExistsError, NotADirectoryError):  # something else is there
                os.makedirs(folder / item.key, exist_ok=True)
    for label, name in labels.items():
        if not os.path.lexists(folder / label):
            folder.mkdir(parents=True, exist_ok=True)
            os.symlink(name, folder / label)
    if not wanted:
        return
    bar = ProgressBar(tell, host, "restoring checkpoints", sum(item.size for item in wanted))
    # Their manifests last: an interrupted restore leaves no folder that looks whole.
    for item in sorted(wanted, key=lambda item: item.key.endswith(f"/{saved.MANIFEST}")):
        _fetch(item, folder / item.key, bar)
    bar.end(f"{len(wanted):,} files, {size(sum(item.size for item in wanted))} from {uri} in {bar.elapsed:.1f} s")


def _labels(items: Sequence[DataObject]) -> dict[str, str]:
    """Return the folders that are copies of one of the Checkpointer's: it made a link to that, a label."""
    manifests = {}
    for item in items:
        top, _, rest = item.key.partition("/")
        if rest == saved.MANIFEST and item.identity is not None:
            manifests[top] = (item.identity, item.size)
    names = {manifest: top for top, manifest in manifests.items() if saved.CHECKPOINT.fullmatch(top)}
    return {top: names[m] for top, m in manifests.items() if not saved.CHECKPOINT.fullmatch(top) and m in names}


def _fetch(item: DataObject, target: Path, bar: ProgressBar) -> None:
    """Bring an object, which keeps its time: what is newer was written here."""
    partial = target.with_name(f".{target.name}.partial")
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
    """Brings new files of a folder to S3.

    Args:
        folder: The folder; it need not exist yet.
        uri: The prefix.
        host: For the lines that it tells.
        tell: Takes lines.
        what: What the files are.
    """

    def __init__(self, folder: Path, uri: str, *, host: str, tell: Tell, what: str = _CHECKPOINTS) -> None:
        self._folder = folder
        self._prefix = uri.rstrip("/") + "/"
        self._host = host
        self._tell = tell
        self._what = what
        self._up: dict[str, tuple[int, int, int]] = {}
        self._seen: dict[str, tuple[int, int, int]] = {}
        self._warned: set[str] = set()

    def run(self, moments: Iterable[None]) -> None:
        """Upload what there is at some moments, then what is left.

        Args:
            moments: When to look; the next is waited for.

        Raises:
            AgentError: something could not be uploaded in the end; it says what is where.
        """
        if self._what == _CHECKPOINTS:  # nothing else was brought down, and a size tells little of what changes
            self.mark_restored()
        for _ in moments:
            failed = self.look(final=False)
            if failed and not self._warned.intersection(failed):
                self._warned.update(failed)
                name, error = next(iter(failed.items()))
                warn(self._tell, self._host, f"{self._what}: {name!r} could not be uploaded yet: {error}")
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
        """Make sure that everything is there: the next job trusts in it.

        Raises:
            AgentError: something is not there as it is here, or nobody can say.
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
        """Compare once: files that S3 has too came from there, or an earlier attempt uploaded them.

        Ranks may write already: a file that is newer than the object goes up, also where it has its size.
        """
        from container.agent.s3 import listing

        with contextlib.suppress(SourceError):  # the first look tries everything then
            there = {item.key: item for item in listing.listing(self._prefix, empty=True)}
            for name, status in self._files():
                item = there.get(name)
                if item is not None and item.size == status.st_size and status.st_mtime <= (item.modified or 0):
                    self._up[name] = _identity(status)

    def look(self, *, final: bool) -> dict[str, Exception]:
        """Upload what is new and complete; everything that is new if it is the last look.

        Returns:
            What could not be uploaded, and why.
        """
        failed: dict[str, Exception] = {}
        seen: dict[str, tuple[int, int, int]] = {}
        for name, status in self._files():
            now = _identity(status)
            seen[name] = now
            whole = saved.CHECKPOINT.fullmatch(name.partition("/")[0]) is not None and "/" in name
            if self._up.get(name) == now or not (final or whole or self._is_settled(name, now)):
                continue
            if failed:  # the server may be away for long; and a manifest must not go up without what it lists
                failed[name] = next(iter(failed.values()))
                continue
            try:
                self._upload(name)
            except (AgentError, OSError) as error:
                failed[name] = error
        self._seen = seen
        return failed

    def _is_settled(self, name: str, now: tuple[int, int, int]) -> bool:
        """Whether something has not changed since the look before; an empty folder may be filled at any time."""
        return self._seen.get(name) == now and not name.endswith("/")

    def _upload(self, name: str) -> None:
        """Upload a file, unless it was deleted since it was seen."""
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
        """Have an empty folder in S3."""
        from container.agent.s3.upload import S3Upload

        with S3Upload(f"{self._prefix}{name}"):
            pass

    def _transfer(self, name: str, file: io.FileIO, status: os.stat_result) -> None:
        from container.agent.s3.upload import S3Upload

        with S3Upload(f"{self._prefix}{name}") as target:
            while chunk := file.read(_CHUNK):
                target.write(chunk)

    def _files(self) -> list[tuple[str, os.stat_result]]:
        """Return every file that may be uploaded; manifests after what they list."""
        return self._walk(follow=True)

    def _walk(self, *, follow: bool) -> list[tuple[str, os.stat_result]]:
        found = []
        for name, status in saved.walk(str(self._folder), follow=follow):
            if status is None:
                self._skip(name)
            else:
                found.append((name, status))
        return _sorted(found)

    def _skip(self, name: str) -> None:
        if name not in self._warned:
            self._warned.add(name)
            warn(
                self._tell,
                self._host,
                f"{self._folder / name} is not uploaded: it is a link, and its target is outside {self._folder}.",
            )


class Sender(Uploader):
    """Sends new files of a folder to the job's supervisor, and says which have been deleted.

    A file is ``file`` with its name, mode and time, ``data`` with its bytes, and ``whole``; ``link`` has a name and a
    target, ``folder`` is an empty one, ``gone`` names one that was deleted.

    Args:
        folder: The folder; it need not exist yet.
        host: For the lines that it tells.
        restored: What came from the supervisor, as :func:`saved.files_below` has it: ranks may write already.
    """

    def __init__(self, folder: Path, *, host: str, restored: Mapping[str, tuple[int, int]]) -> None:
        super().__init__(folder, "", host=host, tell=self._say)
        self._out = sys.stdout.buffer
        self._restored = restored

    def mark_restored(self) -> None:
        """Find what came from the supervisor; of that, what is not there any more has been deleted."""
        self._up = {name: (*known, 0) for name, known in self._restored.items()}
        for name, status in self._files():
            if self._restored.get(name) == saved.facts(self._folder / name, status):
                self._up[name] = _identity(status)

    def look(self, *, final: bool) -> dict[str, Exception]:
        """Send what is new and complete, and what is gone."""
        failed = super().look(final=final)
        for name in [name for name in self._up if name not in self._seen]:
            del self._up[name]
            self._out.write(encode({"op": "gone", "name": name}))
        self._out.flush()
        return failed

    def _is_settled(self, name: str, now: tuple[int, int, int]) -> bool:
        return self._seen.get(name) == now

    def compare(self) -> None:
        """Nothing: what arrives is written, or fails there."""

    def _say(self, line: bytes) -> None:
        self._out.write(encode({"op": "say"}, line))

    def _files(self) -> list[tuple[str, os.stat_result]]:
        return self._walk(follow=False)

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
        except FileNotFoundError:  # deleted since it was seen
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


def _sorted(found: Iterable[tuple[str, os.stat_result]]) -> list[tuple[str, os.stat_result]]:
    """Put manifests after what they list, and links to folders after those."""
    return sorted(
        found,
        key=lambda item: (
            stat.S_ISLNK(item[1].st_mode),
            item[0].partition("/")[0],
            item[0].endswith(saved.MANIFEST),
            item[0],
        ),
    )


@contextlib.contextmanager
def _kept(folder: Path) -> Iterator[None]:
    """Hold a shared lock on a folder: the Checkpointer deletes no folder that is locked."""
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
    """Yield every so many seconds until the end of standard input, which is open while the job runs."""
    while not select.select([0], [], [], every)[0] or os.read(0, 1024):
        yield


def _restored() -> dict[str, tuple[int, int]]:
    """Read the message with which standard input begins: nothing else is on it.

    Raises:
        MessageError: it ends before.
    """
    line = bytearray()
    while not line.endswith(b"\n") and (data := os.read(0, _CHUNK)):
        line += data
    return {name: (size, time) for name, (size, time) in decode(bytes(line))["files"].items()}


def _identity(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ino


def _parse(argv: Sequence[str]) -> tuple[str, Path, str, str, float, str]:
    if not argv or argv[0] not in ("down", "up", "out"):
        raise ValueError(f"agent sync needs 'down', 'up' or 'out', got {argv[0] if argv else ''!r}")
    values: dict[str, str] = {}
    rest = list(argv[1:])
    while rest:
        option = rest.pop(0)
        if option not in ("--dir", "--uri", "--host", "--every", "--what") or not rest:
            raise ValueError(f"agent sync has no option {option!r}, or it needs a value")
        values[option] = rest.pop(0)
    for option in ("--dir", "--host", *(("--uri",) if argv[0] != "out" else ())):
        if option not in values:
            raise ValueError(f"{option} is missing")
    every = values.get("--every") or os.environ.get(EVERY) or _EVERY_S
    try:
        seconds = float(every)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise ValueError(f"--every and {EVERY} must be a number of seconds above 0; got {every!r}")
    return (
        argv[0],
        Path(values["--dir"]),
        values.get("--uri", ""),
        values["--host"],
        seconds,
        values.get("--what", _CHECKPOINTS),
    )
