"""Run the threads that serve the FIFOs of ``agent pipe``."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from container.agent.channels import read_channels
from container.agent.pipes.sharing import SharedObjects
from container.agent.pipes.stream import ChannelContents, write_stream
from container.agent.pipes.writing import Pipe, ReaderGone
from container.agent.words import Words
from container.contract import pipes
from container.contract.channels import DataDistribution, HostChannel, InputMode
from container.contract.errors import AgentError, ConfigurationError
from container.contract.frozen import dataclass
from container.contract.layout import MLTree
from container.contract.pipes import Note
from container.contract.sharding import imbalance
from container.contract.wire import Event
from container.formats import DamagedRecordError
from container.formats.gzip import GzipError

USAGE = "agent pipe --base-dir DIR --channels FILE --host NAME [--hosts N --number I] [--ranks P] [--everybody]"
_ENDING = {signal.SIGTERM, signal.SIGINT}
_OPTIONS = ("--base-dir", "--channels", "--host", "--hosts", "--number", "--ranks")


@dataclass(frozen=True, kw_only=True)
class PipeHost:
    """The host whose FIFOs are served.

    Attributes:
        name: The host's name.
        number: Number of the host, from 0.
        hosts: Number of hosts.
        ranks: Number of processes on the host that read the channels.
        tree: The host's file tree.
        everybody: Whether any user may read the FIFOs, because a container may run its programs as another user. If
            false, only this user may.
    """

    name: str
    number: int
    hosts: int
    ranks: int
    tree: MLTree
    everybody: bool = False


def main(argv: Sequence[str]) -> int:
    """Serve the FIFOs until SIGTERM or SIGINT.

    Returns:
        0 after a signal. 1 if a channel cannot be read. 2 if the command line is invalid.
    """
    try:
        words = Words(argv, _OPTIONS, ("--everybody",))
        host = PipeHost(
            name=words.one("--host"),
            number=int(words.one("--number", "0")),
            hosts=int(words.one("--hosts", "1")),
            ranks=int(words.one("--ranks", "1")),
            tree=MLTree(Path(words.one("--base-dir"))),
            everybody="--everybody" in words,
        )
        file = Path(words.one("--channels"))
    except ValueError as error:
        print(f"{error}; usage: python -m container {USAGE}", file=sys.stderr)
        return 2
    try:
        channels = [channel for channel in read_channels(file) if channel.mode is InputMode.PIPE]
    except AgentError as error:
        _fail(error)
    # Threads inherit the mask. A handler would not work: Python runs it in this thread, and if the signal arrives just
    # before this thread begins to wait, the thread would continue to wait.
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    threading.Thread(target=_serve_all, args=(channels, host), daemon=True).start()
    signal.sigwait(_ENDING)
    return _leave(host, channels)


#: The thread that has the first failure, or that handles the first signal, acquires this lock and ends the process.
#: Other failing threads wait for the lock until the process ends.
_failing = threading.Lock()
#: How long the main thread waits, after a signal, for a thread that is reporting a failure, in seconds.
_LAST_WORDS_S = 1.0


def _fail(error: Exception) -> NoReturn:
    """Print the error, and exit the process with code 1. Any thread may call this function."""
    _failing.acquire()
    try:
        with contextlib.suppress(Exception):  # the reader of the output has ended, or the output was closed
            sys.stdout.flush()
        print(str(error).replace("\n", " "), file=sys.stderr, flush=True)
    finally:
        # The notes beside the FIFOs tell the reason to the readers, whose streams end with this process.
        os._exit(1)


def _leave(host: PipeHost, channels: Sequence[HostChannel]) -> NoReturn:
    # The cleanup does not wait for the other threads. Errors that the cleanup causes in them are ignored, because this
    # thread keeps the lock. A thread that had an error before has the lock, and exits the process itself.
    _failing.acquire(timeout=_LAST_WORDS_S)
    for channel in channels:
        for local_rank in range(host.ranks):
            pipes.clear(pipes.folder(host.tree.data, local_rank, host.ranks), channel.name)
    os._exit(0)


def _serve_all(channels: Sequence[HostChannel], host: PipeHost) -> None:
    try:
        for channel in channels:
            _serve(channel, host)
    except (AgentError, ConfigurationError, DamagedRecordError, OSError) as error:
        _fail(error)
    except Exception as error:  # noqa: BLE001 - otherwise the error would be lost
        _fail(AgentError(f"channel {channel.name!r}: {error!r}"))


def _serve(channel: HostChannel, host: PipeHost) -> None:
    """Create a channel's first FIFOs, and start threads that wait until readers open the FIFOs.

    Raises:
        AgentError: the channel has no data, or its data cannot be read.
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
        # keep the first FIFO, which was created before the hosts started
        pipes.clear(place, channel.name, but_first=True)
        # The reader counts epochs in a state file. Remove this file, which may be from an earlier attempt.
        state = pipes.state_folder(host.tree.base, local_rank if host.ranks > 1 else None)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(state / f".{channel.name}-pipe_mode-state")
        _Feeder(contents, place, local_rank, host, sharing).begin()


class _Feeder:
    """Serve the FIFOs from which one reader reads one channel."""

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
        """Create the reader's first FIFO, and start a thread that waits until the reader opens the FIFO."""
        self._make(0)
        threading.Thread(target=self._run, daemon=True).start()

    def _make(self, number: int) -> None:
        """Create a FIFO, unless it is the first FIFO and exists already. Queue the FIFO for the next free thread.

        The FIFO's number is the number of its epoch, unless the reader requests a different epoch.
        """
        path = pipes.fifo(self._place, self._contents.channel.name, number)
        if number == 0 and path.exists():
            pass
        elif self._everybody:
            staged = path.with_name(f".{path.name}.fifo")
            os.mkfifo(staged, 0o600)
            os.chmod(staged, 0o666)  # regardless of the umask
            os.rename(staged, path)  # so that readers never see the FIFO with fewer permissions
        else:
            os.mkfifo(path, 0o600)
        self._made.put((number, path))

    def _run(self) -> None:
        name = self._contents.channel.name
        number, path = self._made.get()
        notes = pipes.notes_file(self._place, name, number)
        try:
            # Start the next thread now. If it started only after a reader has opened its FIFO, that reader would have
            # to wait.
            threading.Thread(target=self._run, daemon=True).start()
            file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)  # returns when the reader has opened the FIFO
            epoch = pipes.take_asked(self._state, name, number)
            # Create the next FIFO before this epoch ends: a reader may leave early.
            self._make(number + 1)
            with Pipe(file, notes, mode=0o644 if self._everybody else 0o600) as pipe:
                try:
                    rank, ranks = self._local_rank, self._ranks
                    write_stream(pipe, self._contents, epoch, local_rank=rank, ranks=ranks, sharing=self._sharing)
                    pipe.note(Note(at=pipe.written, done=True))
                except ReaderGone:
                    pass
                except (AgentError, DamagedRecordError, GzipError, OSError) as error:
                    # At the end of its data, the reader reads this note to learn whether the stream is complete.
                    pipe.note(Note(at=pipe.written, error=str(error).replace("\n", " ")))
                    _fail(error)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
                os.unlink(pipes.notes_file(self._place, name, number - 2))
        except Exception as error:  # noqa: BLE001 - after any error, the job must not wait for input that has ended
            _fail(AgentError(f"channel {name!r}, FIFO {number}: {error!r}"))
