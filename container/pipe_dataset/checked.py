"""Leaving damaged records out, for ``max_corrupted_records_to_skip``.

TensorFlow's reader leaves the rest of a file out with a damaged record. So here the checksums are computed in Python,
which is slow: some megabytes in a second.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from container.formats import tfrecord

if TYPE_CHECKING:
    from container.pipe_dataset.stream import StreamReader


class Tolerant:
    """TFRecords without the damaged ones.

    Args:
        reader: The stream.
        tolerated: How many damaged records in a row are left out; one more is an error.
    """

    def __init__(self, reader: StreamReader, tolerated: int) -> None:
        self._reader = reader
        self._tolerated = tolerated
        self._in_a_row = 0

    def next_records(self) -> list[bytes] | None:
        """The next good records; None at the stream's end.

        Raises:
            RecordError: there are too many damaged ones in a row.
        """
        while (found := self._reader.next_whole()) is not None:
            at, first, records = found
            good = []
            for number, record in enumerate(records):
                if tfrecord.is_whole(record):
                    self._in_a_row = 0
                    good.append(tfrecord.content(record))
                else:
                    self._leave_out(at, first + number)
                at += len(record)
            if good:
                return good
        return None

    def _leave_out(self, at: int, number: int) -> None:
        from container.pipe_dataset import faults

        cause = "its data is damaged (the checksum is wrong)"
        fault = faults.at(self._reader, at, number, cause, framed=True)
        self._in_a_row += 1
        if self._in_a_row > self._tolerated:
            raise fault
        print(f"PipeModeDataset: left out: {fault}", file=sys.stderr, flush=True)
