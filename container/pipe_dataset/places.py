"""Which FIFO a reader opens: the rank's folder, and the next epoch."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from container.contract import pipes, variables
from container.contract.layout import DEFAULT_BASE_DIR, MLTree
from container.pipe_dataset.faults import PipeError

#: How long a FIFO may take to appear, in seconds, as in SageMaker's reader.
APPEARANCE = 120.0
_PAUSE = 0.005
#: Local rank and the ranks of the host, as mpirun and our toolkit say it.
_LOCAL = (
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    (variables.LOCAL_RANK, variables.LOCAL_SIZE),
)


def tree(environ: Mapping[str, str]) -> MLTree:
    """The host's tree."""
    if environ.get("SM_INPUT_DIR"):
        return MLTree(Path(environ["SM_INPUT_DIR"]).parent)
    return MLTree(Path(environ.get(variables.BASE_DIR) or DEFAULT_BASE_DIR))


def pipe_folder(channel: str, environ: Mapping[str, str]) -> Path:
    """The folder of this process's FIFOs of a channel.

    Raises:
        PipeError: several ranks would read one FIFO, and each would get pieces of records.
    """
    named = environ.get(f"SM_CHANNEL_{channel.upper()}")
    folder = Path(named).parent if named else tree(environ).data
    if pipes.rank_of(folder) is not None:
        return folder
    local_rank, ranks = local(environ)
    if ranks == 1:
        return folder
    own = pipes.folder(folder, local_rank, ranks)
    if not own.is_dir():
        raise PipeError(
            f"channel {channel!r}: {ranks} ranks of this host would read one FIFO, and each would get pieces of "
            f"records: {own} does not exist. Where the platform makes one FIFO for a host, use processes_per_host=1, "
            "or input_mode='File' or 'FastFile'."
        )
    return own


def local(environ: Mapping[str, str]) -> tuple[int, int]:
    """The local rank, and how many ranks read on this host."""
    for rank, size in _LOCAL:
        if environ.get(size):
            return int(environ.get(rank) or 0), int(environ[size])
    return 0, 1


def state_folder(folder: Path, environ: Mapping[str, str]) -> Path:
    """Where the number of the next epoch is kept; each rank's own."""
    rank = pipes.rank_of(folder)
    base = tree(environ).base / "pipe_state"
    return base if rank is None else base / f"rank-{rank}"


class Epochs:
    """Counts the epochs of a channel that have been begun, in a file, as SageMaker's reader does.

    Args:
        folder: Where.
        channel: The channel.
    """

    def __init__(self, folder: Path, channel: str) -> None:
        self._state = folder / f".{channel}-pipe_mode-state"
        self._lock = folder / f".{channel}-pipe_mode-lock"

    def take(self) -> int:
        """The number of the next epoch, from 0, which is then begun."""
        with self._locked():
            epoch = self._read()
            self._state.write_text(str(epoch + 1))
        return epoch

    def next(self) -> int:
        """The number of the next epoch."""
        with self._locked():
            return self._read()

    def _read(self) -> int:
        try:
            return int(self._state.read_text() or 0)
        except FileNotFoundError:
            return 0

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self._lock.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(self._lock, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            os.close(file)


def open_fifo(path: Path, *, timeout: float = APPEARANCE) -> int:
    """Open a FIFO for reading when it is there and somebody writes into it.

    Raises:
        PipeError: it does not appear, or is none.
    """
    until = time.monotonic() + timeout
    while True:
        try:
            # Opened at once, whether or not anybody writes: the wait for the writer is below.
            file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            break
        except FileNotFoundError:
            if time.monotonic() > until:
                raise PipeError(
                    f"{path} did not appear within {timeout:g} s. It is a FIFO that the platform makes for a channel "
                    "in Pipe mode; a script that runs by hand has none."
                ) from None
            time.sleep(_PAUSE)
        except OSError as error:
            raise PipeError(f"{path} cannot be opened: {error.strerror}.") from error
    poll = select.poll()
    poll.register(file, select.POLLIN)  # and POLLHUP, once a writer was there and is gone
    poll.poll()
    os.set_blocking(file, True)
    return file
