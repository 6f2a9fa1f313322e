"""How Pipe mode looks on a host: where FIFOs are, what lies beside them, and whose they are.

SageMaker has ``/opt/ml/input/data/<channel>_<epoch>``, one FIFO for each epoch, read by one process. Where a host has
several ranks, each has FIFOs of its own in ``/opt/ml/input/data/.rank-<local rank>``, with a disjoint share of a
channel that is ShardedByS3Key, and everything of one that is FullyReplicated.

Beside a FIFO the host agent notes which object begins where in the stream (the *notes*: a line of JSON for each), so
that the reader can name the object of a record that is damaged. On SageMaker there are none.
"""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

#: What follows a host's FIFO folder where several ranks read.
_RANK_FOLDER = re.compile(r"\.rank-(\d+)")


def folder(data: Path, local_rank: int, ranks: int) -> Path:
    """The folder of a rank's FIFOs.

    Args:
        data: The host's data folder, ``/opt/ml/input/data``.
        local_rank: The rank on the host.
        ranks: How many ranks the host has.
    """
    return data / f".rank-{local_rank}" if ranks > 1 else data


def rank_of(place: Path) -> int | None:
    """The local rank whose folder it is; None for the host's own."""
    found = _RANK_FOLDER.fullmatch(place.name)
    return int(found[1]) if found else None


def fifo(place: Path, channel: str, epoch: int) -> Path:
    """An epoch's FIFO."""
    return place / f"{channel}_{epoch}"


def notes_file(place: Path, channel: str, epoch: int) -> Path:
    """The notes beside it."""
    return place / f".{channel}_{epoch}.notes"


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
        """One line of the notes."""
        values = {name: value for name, value in dataclasses.asdict(self).items() if value is not None and value != ""}
        return json.dumps(values, separators=(",", ":")).encode() + b"\n"


def read_notes(content: bytes) -> list[Note]:
    """What the agent has written so far; an unfinished line is left out."""
    found: list[Note] = []
    for line in content.split(b"\n")[:-1]:
        values: dict[str, Any] = json.loads(line)
        known = {field.name for field in dataclasses.fields(Note)}
        found.append(Note(**{name: value for name, value in values.items() if name in known}))
    return found
