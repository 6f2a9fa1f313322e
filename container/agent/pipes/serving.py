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
from typing import NoReturn

from container.agent.pipes.sharing import SharedObjects
from container.agent.pipes.stream import ChannelContents, write_stream
from container.agent.pipes.writing import Pipe, ReaderGone
from container.contract import pipes
from container.contract.channels import DataDistribution, HostChannel, InputMode
from container.contract.errors import AgentError, ConfigurationError
from container.contract.layout import MLTree
from container.contract.pipes import Note
from container.contract.sharding import imbalance
from container.contract.wire import Event
from container.formats import RecordError
from container.formats.gzip import GzipError

USAGE = "agent pipe --base-dir DIR --channels FILE --host NAME [--hosts N --number I] [--ranks P] [--everybody]"
_ENDING = {signal.SIGTERM, signal.SIGINT}
_OPTIONS = ("--base-dir", "--channels", "--host", "--hosts", "--number", "--ranks")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PipeHost:
    """The host whose FIFOs are served.

    Attributes:
        name: The host's name.
        number: Its place among the hosts, from 0.
        hosts: How many there are.
        ranks: How many of its processes read.
        tree: Its file tree.
        everybody: Whether any user may read the FIFOs, as in a container whose programs run as one of its own; else
            nobody but this one.
    """

    name: str
    number: int
    hosts: int
    ranks: int
    tree: MLTree
    everybody: bool = False


def main(argv: Sequence[str]) -> int:
    """Serve until SIGTERM, or SIGINT.

    Returns:
        0 after a signal, 1 when a channel cannot be read, 2 for a wrong command line.
    """
    try:
        host, file = _parse(argv)
    except ValueError as error:
        print(f"{error}; usage: python -m container {USAGE}", file=sys.stderr)
        return 2
    try:
        channels = read_channels(file)
    except (AgentError, ConfigurationError) as error:
        _fail(error)
    # Threads inherit it. A handler would not do: Python runs it in this thread, and where the signal comes in the
    # moment in which this begins to wait for something, it would wait on.
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    threading.Thread(target=_serve_all, args=(channels, host), daemon=True).start()
    signal.sigwait(_ENDING)
    return _leave(host, channels)


#: The first failure ends the process, or a signal; others wait for that.
_failing = threading.Lock()
#: How long a failure may take to be said, in seconds.
_LAST_WORDS_S = 1.0


def _fail(error: Exception) -> NoReturn:
    """End the process, from whichever thread."""
    _failing.acquire()
    try:
        with contextlib.suppress(Exception):  # nobody reads it any more, or it was closed
            sys.stdout.flush()
        print(str(error).replace("\n", " "), file=sys.stderr, flush=True)
    finally:
        # Readers find the reason beside their FIFOs; they end with theirs when this process is gone.
        os._exit(1)


def _leave(host: PipeHost, channels: Sequence[HostChannel]) -> NoReturn:
    # Threads may be in the middle of anything: what is left to do is done here, at once. What they miss from now on is
    # no failure; one that has found a failure before ends the process in a moment.
    _failing.acquire(timeout=_LAST_WORDS_S)
    for channel in channels:
        for local_rank in range(host.ranks):
            pipes.clear(pipes.folder(host.tree.data, local_rank, host.ranks), channel.name)
    os._exit(0)


def read_channels(file: Path) -> tuple[HostChannel, ...]:
    """Read the channels in Pipe mode.

    Raises:
        AgentError: the file cannot be read.
        ConfigurationError: a channel cannot be.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise AgentError(f"{file}: the channels cannot be read: {error}") from error
    found = (HostChannel.from_dict(name, values) for name, values in content.items())
    return tuple(channel for channel in found if channel.mode is InputMode.PIPE)


def _serve_all(channels: Sequence[HostChannel], host: PipeHost) -> None:
    try:
        for channel in channels:
            _serve(channel, host)
    except (AgentError, ConfigurationError, RecordError, OSError) as error:
        _fail(error)
    except Exception as error:  # noqa: BLE001 - nobody else would hear of it
        _fail(AgentError(f"channel {channel.name!r}: {error!r}"))


def _serve(channel: HostChannel, host: PipeHost) -> None:
    """Make the first FIFOs of a channel, and the threads that wait for their readers.

    Raises:
        AgentError: there is nothing to read.
    """
    contents = ChannelContents.of(channel, hosts=host.hosts, host=host.number, failed=_fail)
    if channel.distribution is DataDistribution.SHARDED and host.number == 0:
        shares = [sum(item.size for item in contents.share(0, of)) for of in range(host.hosts)]
        if (words := imbalance(shares)) is not None:
            text = f"channel {channel.name!r}: {words}"
            sys.stdout.buffer.write(Event(kind="warning", host=host.name, data={"message": text}).to_line())
            sys.stdout.flush()
    sharing = SharedObjects(host.ranks) if host.ranks > 1 else None
    for local_rank in range(host.ranks):
        place = pipes.folder(host.tree.data, local_rank, host.ranks)
        place.mkdir(parents=True, exist_ok=True)
        pipes.clear(place, channel.name, but_first=True)  # which is made before the hosts start
        # The reader counts epochs in a file of its own, which may be an earlier attempt's.
        state = pipes.state_folder(host.tree.base, local_rank if host.ranks > 1 else None)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(state / f".{channel.name}-pipe_mode-state")
        _Feeder(contents, place, local_rank, host, sharing).begin()


class _Feeder:
    """Serves one reader of one channel."""

    def __init__(
        self,
        contents: ChannelContents,
        place: Path,
        local_rank: int,
        host: PipeHost,
        sharing: SharedObjects | None,
    ) -> None:
        self._sharing = sharing
        self._contents = contents
        self._place = place
        self._local_rank = local_rank
        self._ranks = host.ranks
        self._everybody = host.everybody
        self._made: queue.SimpleQueue[tuple[int, Path]] = queue.SimpleQueue()
        self._state = pipes.state_folder(host.tree.base, local_rank if host.ranks > 1 else None)

    def begin(self) -> None:
        """Make the first FIFO, and wait for its reader in a thread."""
        self._make(0)
        threading.Thread(target=self._run, daemon=True).start()

    def _make(self, number: int) -> None:
        """Make a FIFO for whichever thread is free. Its number is its epoch, unless the reader asks."""
        path = pipes.fifo(self._place, self._contents.channel.name, number)
        if number == 0 and path.exists():
            pass
        elif self._everybody:
            staged = path.with_name(f".{path.name}.fifo")
            os.mkfifo(staged, 0o600)
            os.chmod(staged, 0o666)  # whatever the umask
            os.rename(staged, path)  # never seen with less
        else:
            os.mkfifo(path, 0o600)
        self._made.put((number, path))

    def _run(self) -> None:
        name = self._contents.channel.name
        number, path = self._made.get()
        notes = pipes.notes_file(self._place, name, number)
        try:
            # Now, and not when the reader has come, who waits then.
            threading.Thread(target=self._run, daemon=True).start()
            file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)  # returns when the reader is there
            epoch = pipes.take_asked(self._state, name, number)
            # The next one is there before this one is over: a reader may leave early.
            self._make(number + 1)
            with Pipe(file, notes, mode=0o644 if self._everybody else 0o600) as pipe:
                try:
                    rank, ranks = self._local_rank, self._ranks
                    write_stream(pipe, self._contents, epoch, local_rank=rank, ranks=ranks, sharing=self._sharing)
                    pipe.note(Note(at=pipe.written, done=True))
                except ReaderGone:
                    pass
                except (AgentError, RecordError, GzipError, OSError) as error:
                    # The reader, at the end of what it gets, looks here whether it is the end.
                    pipe.note(Note(at=pipe.written, error=str(error).replace("\n", " ")))
                    _fail(error)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
                os.unlink(pipes.notes_file(self._place, name, number - 2))
        except Exception as error:  # noqa: BLE001 - whatever it is, a job whose input has ended must not wait for it
            _fail(AgentError(f"channel {name!r}, FIFO {number}: {error!r}"))


def _parse(argv: Sequence[str]) -> tuple[PipeHost, Path]:
    given: dict[str, str] = {}
    rest = [word for word in argv if word != "--everybody"]
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
    host = PipeHost(
        name=given["--host"],
        number=int(given.get("--number", 0)),
        hosts=int(given.get("--hosts", 1)),
        ranks=int(given.get("--ranks", 1)),
        tree=MLTree(Path(given["--base-dir"])),
        everybody="--everybody" in argv,
    )
    return host, Path(given["--channels"])
