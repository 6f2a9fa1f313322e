"""Divide records among the ranks of a host, in turn."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from container import formats
from container.agent.pipes.writing import Pipe
from container.agent.sources import DataObject
from container.contract.errors import AgentError
from container.contract.pipes import Note
from container.formats import DamagedRecordError, FramingError, RecordFormat

#: Number of bytes at the beginning of an object that show its format.
_HEAD = 4096


class Dealer:
    """Select one rank's records of a channel: every ``ranks``-th record of all records that the host reads.

    Each rank's thread parses all records, and keeps only its rank's records. Therefore a rank that stops early, or
    never begins, does not block the other ranks. The data is read only once for all ranks (see :mod:`.sharing`).

    Args:
        channel: The channel's name.
        local_rank: The number of the rank on its host.
        ranks: The number of ranks on the host.
    """

    def __init__(self, channel: str, local_rank: int, ranks: int) -> None:
        self._channel = channel
        self._local_rank = local_rank
        self._ranks = ranks
        self._passed = 0  # number of records so far, of all ranks
        self._kept = 0  # number of records of this rank
        self._format: RecordFormat | None = None

    def write(self, pipe: Pipe, item: DataObject, pieces: Iterable[bytes]) -> None:
        """Write this rank's records of an object to the FIFO.

        Raises:
            DamagedRecordError: a record is damaged.
            AgentError: the object cannot be divided into records.
            ReaderGone: the reader has closed the FIFO.
        """
        first = (self._local_rank - self._passed) % self._ranks
        pipe.note(Note(at=pipe.written, uri=item.uri, plain=False, records=self._kept, first=first, step=self._ranks))
        number = 0  # number of records of the object so far
        head, rest = b"", iter(pieces)
        for piece in rest:
            head += piece
            if len(head) >= _HEAD:
                break
        if not head:
            return
        try:
            for data, ends in formats.blocks(self._recognise(item, head), itertools.chain([head], rest)):
                pipe.write(self._mine(data, ends, first, number))
                number += len(ends)
        except FramingError as error:
            raise DamagedRecordError(
                self._channel, item.uri, error.cause, offset=error.position, record=error.count + 1
            ) from None
        self._passed += number
        self._kept += len(range(first, number, self._ranks))

    def _mine(self, data: bytes, ends: list[int], first: int, number: int) -> bytes:
        """Return this rank's records among the complete records in a block of data.

        Args:
            data: The data.
            ends: The offset in ``data`` at which each record ends.
            first: The number, in the object, of the object's first record that belongs to this rank.
            number: The number, in the object, of the first record in ``data``.
        """
        begins = [0, *ends]
        return b"".join(
            [
                data[begins[index] : ends[index]]
                for index in range((first - number) % self._ranks, len(ends), self._ranks)
            ]
        )

    def _recognise(self, item: DataObject, head: bytes) -> RecordFormat:
        found = formats.recognise(head[:_HEAD])
        if found is None:
            raise AgentError(
                f"channel {self._channel!r}: the records of {item.uri!r} cannot be divided among {self._ranks} "
                "ranks, because its format is not TFRecord, RecordIO or text. Use record_wrapping='RecordIO' (each "
                "object is then one record), distribution='FullyReplicated', or one process on each host."
            )
        if self._format is not None and found is not self._format:
            raise AgentError(
                f"channel {self._channel!r}: {item.uri!r} is {found.value}, but earlier objects are "
                f"{self._format.value}. Give all objects of a channel the same format."
            )
        self._format = found
        return found
