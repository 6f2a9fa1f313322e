"""``agent pipe``: the threads that serve the FIFOs."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from container.agent import AgentError
from container.agent.pipes.stream import Contents, write_stream
from container.agent.pipes.writing import Pipe, ReaderGone
from container.contract import pipes
from container.contract.channels import Channel, ChannelError, DataDistribution, InputMode
from container.contract.layout import MLTree
from container.contract.pipes import Note
from container.contract.sharding import imbalance
from container.contract.wire import Event
from container.formats import RecordError
from container.formats.gzip import GzipError

USAGE = "agent pipe --base-dir DIR --channels FILE --host NAME [--hosts N --number I] [--ranks P]"
_OPTIONS = ("--base-dir", "--channels", "--host", "--hosts", "--number", "--ranks")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Host:
    """Whose FIFOs they are.

    Attributes:
        name: The host's name.
        number: Its place among the hosts, from 0.
        hosts: How many there are.
        ranks: How many of its processes read.
        tree: Its file tree.
    """

    name: str
    number: int
    hosts: int
    ranks: int
    tree: MLTree


def main(argv: Sequence[str]) -> int:
    """Serve until SIGTERM.

    Returns:
        0 after SIGTERM, 1 when a channel cannot be read, 2 for a wrong command line.
    """
    try:
        host, file = _parse(argv)
    except ValueError as error:
        print(f"{error}; usage: python -m container {USAGE}", file=sys.stderr)
        return 2
    try:
        channels = read_channels(file)
        # A thread may be in the middle of anything: what is left to do is done here, at once.
        signal.signal(signal.SIGTERM, lambda number, frame: _leave(host, channels))
        failures: queue.SimpleQueue[Exception] = queue.SimpleQueue()
        for channel in channels:
            _serve(channel, host, failures)
        raise failures.get()
    except (AgentError, ChannelError, RecordError, OSError) as error:
        sys.stdout.flush()
        print(str(error).replace("\n", " "), file=sys.stderr)
        sys.stderr.flush()
        # Readers find the reason beside their FIFOs; they end with theirs when this process is gone.
        os._exit(1)


def _leave(host: Host, channels: Sequence[Channel], frame: FrameType | None = None) -> None:
    for channel in channels:
        for local_rank in range(host.ranks):
            clear(pipes.folder(host.tree.data, local_rank, host.ranks), channel.name)
    os._exit(0)


def read_channels(file: Path) -> tuple[Channel, ...]:
    """The channels in Pipe mode.

    Raises:
        AgentError: the file cannot be read.
        ChannelError: a channel cannot be.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise AgentError(f"{file}: the channels cannot be read: {error}") from error
    found = (Channel.from_dict(name, values) for name, values in content.items())
    return tuple(channel for channel in found if channel.mode is InputMode.PIPE)


def clear(place: Path, channel: str) -> None:
    """Remove a channel's FIFOs and notes, of an earlier attempt for one."""
    entries: list[os.DirEntry[str]] = []
    with contextlib.suppress(OSError):
        entries = list(os.scandir(place))
    for entry in entries:
        name = entry.name.removeprefix(".").removesuffix(".notes")
        if name.startswith(f"{channel}_") and name[len(channel) + 1 :].isdecimal():
            with contextlib.suppress(OSError):  # a thread may have removed this one meanwhile; the others must go
                os.unlink(entry.path)


def _serve(channel: Channel, host: Host, failures: queue.SimpleQueue[Exception]) -> None:
    """Make the first FIFOs of a channel, and the threads that wait for their readers.

    Raises:
        AgentError: there is nothing to read.
    """
    contents = Contents.of(channel, hosts=host.hosts, host=host.number)
    if channel.distribution is DataDistribution.SHARDED and host.number == 0:
        shares = [sum(item.size for item in contents.share(0, of)) for of in range(host.hosts)]
        if (words := imbalance(shares)) is not None:
            text = f"channel {channel.name!r}: {words}"
            sys.stdout.buffer.write(Event(kind="warning", host=host.name, data={"message": text}).to_line())
            sys.stdout.flush()
    for local_rank in range(host.ranks):
        place = pipes.folder(host.tree.data, local_rank, host.ranks)
        place.mkdir(parents=True, exist_ok=True)
        clear(place, channel.name)
        # The reader counts epochs in a file of its own, which may be an earlier attempt's.
        state = host.tree.base / "pipe_state"
        state = state if host.ranks == 1 else state / f"rank-{local_rank}"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(state / f".{channel.name}-pipe_mode-state")
        _Feeder(contents, place, local_rank, host.ranks, failures).begin(0)


class _Feeder:
    """Serves one reader of one channel."""

    def __init__(
        self, contents: Contents, place: Path, local_rank: int, ranks: int, failures: queue.SimpleQueue[Exception]
    ) -> None:
        self._contents = contents
        self._place = place
        self._local_rank = local_rank
        self._ranks = ranks
        self._failures = failures

    def begin(self, epoch: int) -> None:
        """Make an epoch's FIFO, and wait for its reader in a thread."""
        path = pipes.fifo(self._place, self._contents.channel.name, epoch)
        os.mkfifo(path, 0o600)
        threading.Thread(target=self._run, args=(path, epoch), daemon=True).start()

    def _run(self, path: Path, epoch: int) -> None:
        name = self._contents.channel.name
        notes = pipes.notes_file(self._place, name, epoch)
        try:
            file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)  # returns when the reader is there
            # The next epoch's is there before this one is over: a reader may leave early.
            self.begin(epoch + 1)
            with Pipe(file, notes) as pipe:
                try:
                    write_stream(pipe, self._contents, epoch, local_rank=self._local_rank, ranks=self._ranks)
                    pipe.note(Note(at=pipe.written, done=True))
                except ReaderGone:
                    pass
                except (AgentError, RecordError, GzipError, OSError) as error:
                    # The reader, at the end of what it gets, looks here whether it is the end.
                    pipe.note(Note(at=pipe.written, error=str(error).replace("\n", " ")))
                    self._failures.put(error if isinstance(error, AgentError | RecordError) else AgentError(str(error)))
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
                os.unlink(pipes.notes_file(self._place, name, epoch - 2))
        except Exception as error:  # noqa: BLE001 - whatever it is, a job whose input has ended must not wait for it
            self._failures.put(AgentError(f"channel {name!r}, epoch {epoch}: {error!r}"))


def _parse(argv: Sequence[str]) -> tuple[Host, Path]:
    given: dict[str, str] = {}
    rest = list(argv)
    while rest:
        option = rest.pop(0)
        if option not in _OPTIONS:
            raise ValueError(f"agent pipe has no option {option!r}")
        if not rest:
            raise ValueError(f"{option} needs a value")
        given[option] = rest.pop(0)
    for option in ("--base-dir", "--channels", "--host"):
        if option not in given:
            raise ValueError(f"{option} is missing")
    host = Host(
        name=given["--host"],
        number=int(given.get("--number", 0)),
        hosts=int(given.get("--hosts", 1)),
        ranks=int(given.get("--ranks", 1)),
        tree=MLTree(Path(given["--base-dir"])),
    )
    return host, Path(given["--channels"])
