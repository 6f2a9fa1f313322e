"""Find and open the FIFO of this rank's next epoch, and count the epochs that were started."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from container.contract import pipes, variables
from container.contract.layout import DEFAULT_BASE_DIR, MLTree
from container.pipe_dataset import leaving
from container.pipe_dataset.faults import PipeError

#: How many seconds to wait for a FIFO to appear, as in SageMaker's reader.
APPEARANCE = 120.0
_PAUSE = 0.005
#: Environment variables with the local rank and the host's number of ranks: those of mpirun, and those of fleetfit's
#: toolkit.
_LOCAL = (
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    (variables.LOCAL_RANK, variables.LOCAL_SIZE),
)


def tree(environ: Mapping[str, str]) -> MLTree:
    """Return the tree of the host's folders, by default ``/opt/ml``."""
    if environ.get("SM_INPUT_DIR"):
        return MLTree(Path(environ["SM_INPUT_DIR"]).parent)
    return MLTree(Path(environ.get(variables.BASE_DIR) or DEFAULT_BASE_DIR))


def pipe_folder(channel: str, environ: Mapping[str, str]) -> Path:
    """Return the folder that contains a channel's FIFOs for this process.

    Raises:
        PipeError: several ranks would read the same FIFO, and each rank would get parts of records.
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
            f"records. The folder with the FIFOs of this rank, {own}, does not exist. If the platform makes only one "
            "FIFO per host, use processes_per_host=1, or input_mode='File' or 'FastFile'."
        )
    return own


def local(environ: Mapping[str, str]) -> tuple[int, int]:
    """Return this process's rank on the host, and the number of ranks that read on the host."""
    for rank, size in _LOCAL:
        if environ.get(size):
            return int(environ.get(rank) or 0), int(environ[size])
    return 0, 1


def state_folder(folder: Path, environ: Mapping[str, str]) -> Path:
    """Return the folder that stores the number of the next epoch. Each rank has a separate folder."""
    return pipes.state_folder(tree(environ).base, pipes.rank_of(folder))


class EpochCounter:
    """A counter of a channel's started epochs. The count is stored in a file, as in SageMaker's reader.

    Args:
        folder: The folder of the file.
        channel: The name of the channel.
    """

    def __init__(self, folder: Path, channel: str) -> None:
        self.folder = folder
        self._state = os.path.join(folder, f".{channel}-pipe_mode-state")
        self._lock = os.path.join(folder, f".{channel}-pipe_mode-lock")

    def take(self) -> int:
        """Count the next epoch as started, and return the epoch's number, from 0."""
        with self._opened() as state:
            epoch = _number(state)
            _put(state, epoch + 1)
        return epoch

    def begun(self, epoch: int) -> None:
        """Record that an epoch has started. Call this method if the epoch's number does not come from :meth:`take`."""
        with self._opened() as state:
            _put(state, epoch + 1)

    def next(self) -> int:
        """Return the number of the next epoch."""
        with self._opened() as state:
            return _number(state)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        """Open the file that contains the count, and hold the count's lock during a ``with`` block."""
        lock = self._open(self._lock)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            state = self._open(self._state)
            try:
                yield state
            finally:
                os.close(state)
        finally:
            os.close(lock)

    def _open(self, path: str) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        try:
            return os.open(path, flags, 0o666)
        except FileNotFoundError:
            self.folder.mkdir(parents=True, exist_ok=True)
            return os.open(path, flags, 0o666)


def _number(state: int) -> int:
    return int(os.pread(state, 32, 0) or 0)


def _put(state: int, number: int) -> None:
    # Truncated only after the write: truncating first costs more than everything else.
    text = str(number).encode()
    os.pwrite(state, text, 0)
    os.ftruncate(state, len(text))


def _over(until: float, timeout: float) -> str:
    """Pause between two checks for a FIFO. Return "" if the caller must check again.

    Otherwise return the end of an error message: the time that has passed without the FIFO, such as "within 120 s".

    Args:
        until: The time, by the monotonic clock, at which the caller gives up.
        timeout: The time limit in seconds, for the returned text.
    """
    if time.monotonic() > until:
        return f"within {timeout:g} s"
    return "before this process began to exit" if leaving.ending(_PAUSE) else ""


def await_newest(place: Path, channel: str, *, timeout: float = APPEARANCE) -> int:
    """Wait for the channel's newest FIFO, which no reader has opened yet, and return the FIFO's number.

    The number does not depend on the epochs that earlier processes have read.

    Raises:
        PipeError: no FIFO has appeared in time, or this process begins to exit.
    """
    until = time.monotonic() + timeout
    while (number := pipes.newest(place, channel)) is None:
        if over := _over(until, timeout):
            raise PipeError(f"no FIFO of channel {channel!r} appeared in {place} {over}.")
    return number


def open_fifo(path: Path, *, timeout: float = APPEARANCE) -> int:
    """Wait until a FIFO exists, and then until it contains bytes or its writer has closed it. Return a descriptor of
    the FIFO, open for reading in non-blocking mode.

    Args:
        path: The path of the FIFO.
        timeout: The time limit in seconds for the file to appear. The wait for bytes has no limit.

    Raises:
        PipeError: the file does not appear in time or cannot be opened, or this process begins to exit.
    """
    until = time.monotonic() + timeout
    while True:
        try:
            # This does not wait for a writer; the code below does.
            file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            break
        except FileNotFoundError:
            if over := _over(until, timeout):
                raise PipeError(
                    f"{path} did not appear {over}. The platform makes this FIFO for a channel in Pipe "
                    "mode, but not for a script that is started by hand."
                ) from None
        except OSError as error:
            raise PipeError(f"{path} cannot be opened: {error.strerror}.") from error
    if not leaving.wait(file):
        os.close(file)
        raise PipeError(f"{path}: this process ended before anything had opened the FIFO for writing.")
    return file
