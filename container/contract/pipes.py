"""The layout of Pipe mode on a host: FIFOs, the files beside them, and who owns them.

SageMaker has ``/opt/ml/input/data/<channel>_<epoch>``, one FIFO for each epoch, read by one process. Where a host has
several ranks, each has FIFOs of its own in ``/opt/ml/input/data/.rank-<local rank>``, with a disjoint share of a
channel that is ShardedByS3Key, and everything of one that is FullyReplicated.

Which epoch of the channel is written into a FIFO is its number, unless the reader has left word of another one before
it opened it (:func:`ask`): an elastic training reads an epoch again to deal out what is left of it.

Beside a FIFO the host agent notes which object begins where in the stream (the *notes*: a line of JSON for each), so
that the reader can name the object of a record that is damaged. On SageMaker there are none.
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

#: What follows a host's FIFO folder where several ranks read.
_RANK_FOLDER = re.compile(r"\.rank-(\d+)")
#: What a FIFO may hold, in bytes: the kernel's usual limit for everybody.
_SIZE = 1 << 20


def folder(data: Path, local_rank: int, ranks: int) -> Path:
    """Return the folder of a rank's FIFOs.

    Args:
        data: The host's data folder, ``/opt/ml/input/data``.
        local_rank: The rank on the host.
        ranks: How many ranks the host has.
    """
    return data / f".rank-{local_rank}" if ranks > 1 else data


def rank_of(place: Path) -> int | None:
    """Return the local rank that a folder belongs to; None for the host's own."""
    found = _RANK_FOLDER.fullmatch(place.name)
    return int(found[1]) if found else None


def fifo(place: Path, channel: str, epoch: int) -> Path:
    """Return the path of an epoch's FIFO."""
    return place / f"{channel}_{epoch}"


def notes_file(place: Path, channel: str, epoch: int) -> Path:
    """Return the path of the notes beside a FIFO."""
    return place / f".{channel}_{epoch}.notes"


def widen(file: int) -> bool:
    """Let a FIFO hold more, so that neither end waits for the other one at every turn.

    Returns:
        Whether it does: a user may have so many of them.
    """
    with contextlib.suppress(OSError):
        return fcntl.fcntl(file, fcntl.F_SETPIPE_SZ, _SIZE) >= _SIZE
    return False


def state_folder(base: Path, local_rank: int | None) -> Path:
    """Return where a reader keeps its count of epochs, in the host's tree; with several ranks, each has its own."""
    folder = base / "pipe_state"
    return folder if local_rank is None else folder / f"rank-{local_rank}"


def _wish(state: Path, channel: str, number: int) -> Path:
    return state / f".{channel}_{number}.epoch"


def ask(state: Path, channel: str, number: int, epoch: int) -> None:
    """Leave word that a FIFO shall have this epoch; before it is opened.

    Args:
        state: The reader's :func:`state_folder`.
        channel: The channel.
        number: The FIFO's.
        epoch: The epoch, from 0.
    """
    state.mkdir(parents=True, exist_ok=True)
    staged = _wish(state, channel, number).with_suffix(".part")
    staged.write_text(str(epoch), encoding="ascii")
    os.chmod(staged, 0o644)  # the agent may be another user
    os.rename(staged, _wish(state, channel, number))


def take_asked(state: Path, channel: str, number: int) -> int:
    """Return the epoch for the next FIFO: the one that its reader has asked for (the request is then removed), or else
    its number.
    """
    wish = _wish(state, channel, number)
    try:
        os.stat(wish)  # most have none, and the reader waits
    except FileNotFoundError:
        return number
    epoch = int(wish.read_text(encoding="ascii"))
    with contextlib.suppress(OSError):  # of another user: whoever asks again replaces it
        wish.unlink()
    return epoch


def newest(place: Path, channel: str) -> int | None:
    """Return the number of the channel's last FIFO, which waits for its reader; None if there is none yet."""
    found = [entry.name.removeprefix(f"{channel}_") for entry in place.glob(f"{channel}_*")]
    return max((int(number) for number in found if number.isdecimal()), default=None)


def clear(place: Path, channel: str, *, but_first: bool = False) -> None:
    """Remove a channel's FIFOs and notes, of an earlier attempt for one; ``but_first`` leaves the FIFO of epoch 0."""
    first = fifo(place, channel, 0)
    entries: list[os.DirEntry[str]] = []
    with contextlib.suppress(OSError):
        entries = list(os.scandir(place))
    for entry in entries:
        if but_first and entry.path == os.fspath(first) and stat.S_ISFIFO(entry.stat(follow_symlinks=False).st_mode):
            continue
        name = entry.name.removeprefix(".").removesuffix(".notes").removesuffix(".fifo")
        if name.startswith(f"{channel}_") and name[len(channel) + 1 :].isdecimal():
            with contextlib.suppress(OSError):  # somebody may have removed this one meanwhile; the others must go
                os.unlink(entry.path)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Note:
    """An object begins in the stream, the stream is whole, or the agent has failed.

    Attributes:
        at: The offset in the stream.
        uri: The object; empty for the others.
        plain: Whether the object's bytes follow as they are, so that offsets can be computed.
        records: How many records the stream had before it, where the agent knows.
        first: Which of the object's records comes first, from 0.
        step: How many of its records follow each other from one to the next in the stream.
        done: Whether the stream is whole. One that ends without this note was cut off.
        error: What has failed.
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
        """Return the note as one line."""
        values = {name: value for name, value in dataclasses.asdict(self).items() if value is not None and value != ""}
        return messages.encode(values)


def read_notes(content: bytes) -> list[Note]:
    """Read what the agent has written so far, without an unfinished line."""
    found: list[Note] = []
    for line in content.split(b"\n")[:-1]:
        values = messages.decode(line, key=None)
        known = {field.name for field in dataclasses.fields(Note)}
        found.append(Note(**{name: value for name, value in values.items() if name in known}))
    return found


def library_file(prefix: Path, source: Path) -> Path:
    """Return where an environment has the compiled reader; it need not be there.

    Args:
        prefix: The environment, ``sys.prefix``.
        source: Its source. Another version of it has another name: what is there fits who asks, or is not found.
    """
    import hashlib

    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:12]
    return prefix / "lib" / "fleetfit" / f"pipe_reader-{digest}.so"
