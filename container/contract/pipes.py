"""Define the layout of Pipe mode on a host: FIFOs, the files beside the FIFOs, and which rank reads which FIFO.

On SageMaker, one process reads one FIFO for each epoch: ``/opt/ml/input/data/<channel>_<epoch>``. If a host has several
ranks, each rank has its own FIFOs in ``/opt/ml/input/data/.rank-<local rank>``. From a FullyReplicated channel, each
rank gets all records. From a ShardedByS3Key channel, each rank gets different records.

By default, the FIFO with number *n* gets epoch *n* of the channel. Before a reader opens the FIFO, the reader can
request another epoch (:func:`ask`). For example, an elastic training reads an epoch again to distribute the remaining
records over other ranks.

Beside each FIFO, the host agent writes *notes*: lines of JSON with the offset at which each object begins in the
stream. With the notes, the reader can name the object that contains a damaged record. On SageMaker, there are no notes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import re
import stat
from pathlib import Path

from container.contract import messages
from container.contract.frozen import dataclass

#: Name of the folder, below the host's FIFO folder, that contains one rank's FIFOs.
_RANK_FOLDER = re.compile(r"\.rank-(\d+)")
#: Capacity of a FIFO in bytes: the kernel's usual limit for unprivileged users.
_SIZE = 1 << 20


def folder(data: Path, local_rank: int, ranks: int) -> Path:
    """Return the folder of a rank's FIFOs.

    Args:
        data: The host's data folder, ``/opt/ml/input/data``.
        local_rank: The rank's number on the host.
        ranks: Number of ranks on the host.
    """
    return data / f".rank-{local_rank}" if ranks > 1 else data


def rank_of(place: Path) -> int | None:
    """Return the local rank that a folder of FIFOs belongs to. Return None for the folder that belongs to the host."""
    found = _RANK_FOLDER.fullmatch(place.name)
    return int(found[1]) if found else None


def fifo(place: Path, channel: str, epoch: int) -> Path:
    """Return the path of an epoch's FIFO."""
    return place / f"{channel}_{epoch}"


def notes_file(place: Path, channel: str, epoch: int) -> Path:
    """Return the path of the notes beside a FIFO."""
    return place / f".{channel}_{epoch}.notes"


def widen(file: int) -> bool:
    """Increase the capacity of a FIFO, so that writer and reader wait for each other less often.

    Returns:
        Whether the capacity was increased. The kernel does not increase the capacity if the user's pipes would exceed
        the kernel's limit.
    """
    with contextlib.suppress(OSError):
        return fcntl.fcntl(file, fcntl.F_SETPIPE_SZ, _SIZE) >= _SIZE
    return False


def state_folder(base: Path, local_rank: int | None) -> Path:
    """Return the folder, in the host's tree, in which a reader stores how many epochs of each channel it has started.

    The reader's requests for epochs (:func:`ask`) are in the same folder. If the host has several ranks, each rank has
    its own folder.
    """
    folder = base / "pipe_state"
    return folder if local_rank is None else folder / f"rank-{local_rank}"


def _wish(state: Path, channel: str, number: int) -> Path:
    return state / f".{channel}_{number}.epoch"


def ask(state: Path, channel: str, number: int, epoch: int) -> None:
    """Request an epoch for a FIFO. The reader calls this function before the reader opens the FIFO.

    Args:
        state: The reader's :func:`state_folder`.
        channel: The channel's name.
        number: Number of the FIFO.
        epoch: The number of the requested epoch, from 0.
    """
    state.mkdir(parents=True, exist_ok=True)
    staged = _wish(state, channel, number).with_suffix(".part")
    staged.write_text(str(epoch), encoding="ascii")
    os.chmod(staged, 0o644)  # the agent, which reads the file, may run as a different user
    os.rename(staged, _wish(state, channel, number))


def take_asked(state: Path, channel: str, number: int) -> int:
    """Return the number of the epoch that the host agent must write into a FIFO.

    If the reader has requested an epoch with :func:`ask`, return that epoch, and remove the request. Otherwise return
    the number of the FIFO.
    """
    wish = _wish(state, channel, number)
    try:
        os.stat(wish)  # most FIFOs have no request; stat() is fast, and the reader waits
    except FileNotFoundError:
        return number
    epoch = int(wish.read_text(encoding="ascii"))
    with contextlib.suppress(OSError):  # the file may belong to another user; a new request replaces it
        wish.unlink()
    return epoch


def newest(place: Path, channel: str) -> int | None:
    """Return the number of the channel's newest FIFO, which the reader has not opened yet. Return None if there is no
    FIFO yet.
    """
    found = [entry.name.removeprefix(f"{channel}_") for entry in place.glob(f"{channel}_*")]
    return max((int(number) for number in found if number.isdecimal()), default=None)


def clear(place: Path, channel: str, *, but_first: bool = False) -> None:
    """Remove the FIFOs of a channel, and the notes beside the FIFOs. The FIFOs and notes may be from an earlier
    attempt.

    Args:
        place: The folder of the FIFOs.
        channel: The channel's name.
        but_first: Whether to keep the FIFO of epoch 0.
    """
    first = fifo(place, channel, 0)
    entries: list[os.DirEntry[str]] = []
    with contextlib.suppress(OSError):
        entries = list(os.scandir(place))
    for entry in entries:
        if but_first and entry.path == os.fspath(first) and stat.S_ISFIFO(entry.stat(follow_symlinks=False).st_mode):
            continue
        name = entry.name.removeprefix(".").removesuffix(".notes").removesuffix(".fifo")
        if name.startswith(f"{channel}_") and name[len(channel) + 1 :].isdecimal():
            # another process may have removed this file meanwhile; continue with the others
            with contextlib.suppress(OSError):
                os.unlink(entry.path)


@dataclass(frozen=True, kw_only=True)
class Note:
    """A note about a stream. A note reports that an object begins, that the stream is complete, or that the agent has
    failed.

    Attributes:
        at: The offset in the stream, in bytes, that the note refers to.
        uri: The URI of the object that begins. Empty if the note reports something else.
        plain: Whether the stream contains the object's bytes unchanged, so that offsets in the object can be computed.
        records: Number of records in the stream before the object. None if the agent does not count records.
        first: The position, within the object, of the object's first record that is in the stream. Positions are
            counted in records, from 0.
        step: The distance, within the object, between two successive records in the stream. 1 means that the stream has
            all records from ``first`` on.
        done: Whether the stream is complete. A stream that ends without such a note was cut off.
        error: The error message of the agent. Empty if the agent has not failed.
    """

    at: int
    uri: str = ""
    plain: bool = True
    records: int | None = None
    first: int = 0
    step: int = 1
    done: bool = False
    error: str = ""

    def to_line(self) -> bytes:
        """Encode the note as one line."""
        values = {name: value for name, value in dataclasses.asdict(self).items() if value is not None and value != ""}
        return messages.encode(values)


def read_notes(content: bytes) -> list[Note]:
    """Parse the notes that the agent has written so far. An unfinished last line is ignored."""
    found: list[Note] = []
    for line in content.split(b"\n")[:-1]:
        values = messages.decode(line, key=None)
        known = {field.name for field in dataclasses.fields(Note)}
        found.append(Note(**{name: value for name, value in values.items() if name in known}))
    return found


def library_file(prefix: Path, source: Path) -> Path:
    """Return the path of the compiled C++ reader of Pipe mode in a Python environment. The file need not exist.

    Args:
        prefix: The root folder of the environment (``sys.prefix``).
        source: The source file of the reader. The returned path contains a digest of this file, so that a library
            compiled from a different version is never loaded.
    """
    import hashlib

    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:12]
    return prefix / "lib" / "fleetfit" / f"pipe_reader-{digest}.so"
