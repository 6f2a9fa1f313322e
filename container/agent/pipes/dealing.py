"""Divide records among the ranks of a host, in turn."""

from __future__ import annotations

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
        number = offset = 0  # position in the object
        rest = b""
        framing: formats.Framing | None = None
        for piece in pieces:
            data = rest + piece if rest else piece
            if framing is None:
                if len(data) < _HEAD and len(data) < item.size:
                    rest = data
                    continue
                framing = formats.framing(self._recognise(item, data))
            ends: list[int] = []
            try:
                framing.hop(data, 0, len(data), ends)
            except FramingError as error:
                raise self._damaged(item, offset + error.position, number + error.count, error.cause) from None
            pipe.write(self._mine(data, ends, first, number))
            number += len(ends)
            whole = ends[-1] if ends else 0
            offset += whole
            rest = data[whole:]
        if rest:
            framing = framing or formats.framing(self._recognise(item, rest))
            number += self._last(pipe, item, framing, rest, first, number, offset)
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

    def _last(
        self, pipe: Pipe, item: DataObject, framing: formats.Framing, rest: bytes, first: int, number: int, offset: int
    ) -> int:
        """Write this rank's records among the last records of an object. The very last record may lack its terminator.

        Returns:
            The number of these last records, including the records of other ranks.
        """
        ends: list[int] = []
        try:
            whole, _ = framing.hop(rest, 0, len(rest), ends)
            if whole < len(rest):
                ends.append(framing.last(rest, whole, len(rest)))
                rest += b"\n"  # without this line break, the next object's first line would be joined to the last line
                ends[-1] += 1
        except FramingError as error:
            raise self._damaged(item, offset + error.position, number + len(ends), error.cause) from None
        pipe.write(self._mine(rest, ends, first, number))
        return len(ends)

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

    def _damaged(self, item: DataObject, offset: int, number: int, cause: str) -> DamagedRecordError:
        return DamagedRecordError(self._channel, item.uri, cause, offset=offset, record=number + 1)
