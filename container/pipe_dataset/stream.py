"""Read the FIFO of an epoch into segments. A segment is a file in memory that contains complete records."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import time
from collections import deque
from pathlib import Path

from container import formats
from container.contract import pipes
from container.formats import FramingError, RecordFormat, textline, tfrecord
from container.pipe_dataset import faults, leaving
from container.pipe_dataset.notes import Notes
from container.pipe_dataset.segments import POOL, Segment

#: Size of the first segment, and maximum size in bytes. The first is small, so that the first batch comes early.
SMALLEST = 128 << 10
LARGEST = 4 << 20
#: Maximum size, in bytes, of a segment whose records are copied into a list.
LARGEST_LIST = 1 << 20
#: How long to continue filling a segment that already has a complete record, in seconds. After this time, the segment
#: is returned even if it is not full.
_PATIENCE = 0.05
#: Number of segments: TensorFlow reads one while another is filled, and two wait.
SEGMENTS = 4


@dataclasses.dataclass
class ReceivedSegment:
    """A segment that a StreamReader has returned to its caller, with the segment's position for error messages.

    Attributes:
        segment: The segment.
        size: Size of the segment's records in bytes.
        at: The offset of the segment in the stream, in bytes.
        records: Number of records in the stream before the segment.
    """

    segment: Segment
    size: int
    at: int
    records: int


class StreamReader:
    """A reader of one epoch of a channel.

    Args:
        channel: The name of the channel.
        place: The folder of the FIFO.
        epoch: The number of the FIFO.
        file: The descriptor of the FIFO, open for reading in non-blocking mode.
        record_format: The format of the records.
        skip: The number of records to skip at the beginning.

    Attributes:
        bytes_read: The number of bytes read so far.
        seconds: The time that was spent reading and waiting, in seconds.
        pieces: The segments that were returned most recently.
        notes: The host agent's notes about the objects.
    """

    def __init__(
        self, channel: str, place: Path, epoch: int, file: int, record_format: RecordFormat, *, skip: int = 0
    ) -> None:
        self.channel = channel
        self.place = place
        self.epoch = epoch
        self.bytes_read = 0
        self.seconds = 0.0
        self.pieces: deque[ReceivedSegment] = deque(maxlen=SEGMENTS - 1)
        self.framing = formats.framing(record_format)
        self.record_format = record_format
        self.notes = Notes(pipes.notes_file(place, channel, epoch))
        self._file = file
        self._skip = skip
        self._segments: list[Segment] = []
        self._turn = 0
        self._limit = SMALLEST
        self._at = 0  # offset in the stream of the next segment
        self._records = 0  # number of records before the next segment
        self._carried = b""  # the beginning of an incomplete record
        self._at_end = False
        self._error: Exception | None = None
        pipes.widen(file)

    def next_segment(self) -> str | None:
        """Return the name of the next segment, a file of complete records. Return None at the end of the stream.

        The file is overwritten when the :data:`SEGMENTS`-th segment after the returned one is filled.

        Raises:
            DamagedRecordError: a record is damaged.
            PipeError: the host agent has failed.
        """
        began = time.monotonic()
        try:
            while True:
                filled = self._fill(LARGEST, None)
                if filled is None:
                    return None
                segment, begin, end = filled
                if begin == 0:
                    segment.cut(end)
                    return segment.name
                if begin < end:  # behind the skipped records
                    content = segment.map[begin:end]
                    segment.view[: len(content)] = content
                    self.pieces[-1].at += begin
                    self.pieces[-1].size -= begin
                    segment.cut(len(content))
                    return segment.name
        finally:
            self.seconds += time.monotonic() - began

    def next_records(self) -> list[bytes] | None:
        """Return the contents of the next records. Return None at the end of the stream.

        Raises:
            DamagedRecordError: a record is damaged.
            PipeError: the host agent has failed.
        """
        began = time.monotonic()
        try:
            while True:
                lines = self.record_format is RecordFormat.TEXT_LINE
                ends: list[int] = []
                filled = self._fill(LARGEST_LIST, None if lines else ends)
                if filled is None:
                    return None
                segment, begin, stop = filled
                if lines and begin < stop:
                    return segment.map[begin:stop].removesuffix(textline.END).split(textline.END)
                payload, data = self.framing.payload, segment.map
                found = []
                for end in ends:
                    if end > begin:
                        found.append(payload(data, begin, end))
                        begin = end
                if found:
                    return found
        finally:
            self.seconds += time.monotonic() - began

    def next_whole(self) -> tuple[int, int, list[bytes]] | None:
        """Return the next records, including their headers and checksums. Return None at the end of the stream.

        Returns:
            The offset of the first record in the stream, the number of the first record, and the records.

        Raises:
            DamagedRecordError: a record is damaged.
            PipeError: the host agent has failed.
        """
        while True:
            ends: list[int] = []
            filled = self._fill(LARGEST_LIST, ends)
            if filled is None:
                return None
            segment, begin, _ = filled
            stops = [begin, *(end for end in ends if end > begin)]
            if len(stops) > 1:
                piece = self.pieces[-1]
                number = piece.records + len(ends) - len(stops) + 1
                return piece.at + begin, number, [segment.map[a:b] for a, b in itertools.pairwise(stops)]

    def find(self, position: int) -> tuple[int, int] | None:
        """Find the damaged record at an offset of a segment. Only the most recent segments are searched.

        Returns:
            The offset of the record in the stream, and the number of the record, from 0. None if the record is not
            found.
        """
        for piece in self.pieces:
            with contextlib.suppress(FramingError, ValueError):
                data = piece.segment.map
                end, records = self.framing.hop(data, 0, min(position, piece.size))
                if end == position < piece.size:
                    stop = position + self.framing.needed(data, position, piece.size)
                    if not tfrecord.is_whole(data[position:stop]):
                        return piece.at + position, piece.records + records
        return None

    def close(self) -> None:
        """Close the FIFO, and return the segments to the pool. The writer then finds that the FIFO has no reader."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            self.notes.close()
            for segment in self._segments:
                POOL.give(segment)
            self._segments.clear()

    def _fill(self, largest: int, ends: list[int] | None) -> tuple[Segment, int, int] | None:
        """Fill a segment with complete records.

        Returns:
            The segment, and the offsets at which the records that are not skipped begin and end. None at the end of the
            stream.
        """
        if self._error is not None:
            raise self._error
        if self._at_end:
            return None
        segment = self._next_free()
        carried = self._carried
        room = max(self._limit, 2 * len(carried))
        segment.reserve(room)
        segment.view[: len(carried)] = carried
        filled, whole, count = len(carried), 0, 0
        until = time.monotonic() + _PATIENCE
        try:
            while True:
                if filled >= room:
                    if whole:
                        break
                    room = max(2 * room, self.framing.needed(segment.map, 0, filled))
                    segment.reserve(room)
                if not leaving.wait(self._file, until - time.monotonic() if whole else None):
                    self._at_end = leaving.ending()
                    break
                got = os.readv(self._file, [segment.view[filled:room]])
                if not got:
                    self._at_end = True
                    whole, count = self._finish(segment, whole, filled, count, ends)
                    break
                filled += got
                self.bytes_read += got
                whole, more = self.framing.hop(segment.map, whole, filled, ends)
                count += more
        except FramingError as error:
            count += error.count
            fault = faults.at(self, self._at + error.position, self._records + count, error.cause)
            self._error = fault
            if error.position == 0:
                raise fault from None
            whole = error.position
        whole, count = self._within_objects(segment, whole, count, ends)
        self._limit = min(2 * self._limit, largest)
        self._carried = segment.map[whole:filled] if not self._at_end and self._error is None else b""
        self.pieces.append(ReceivedSegment(segment, whole, self._at, self._records))
        self._at += whole
        self._records += count
        if whole == 0:  # the end of the stream, without another record
            return None
        return segment, self._skipped(segment, whole, count, ends), whole

    def _within_objects(self, segment: Segment, whole: int, count: int, ends: list[int] | None) -> tuple[int, int]:
        """Return the size of a segment's undamaged part, and the number of records in that part.

        If a record is cut off at the end of an object, the bytes of the next object follow the record's beginning. The
        undamaged part ends before such a record.
        """
        if self.record_format is RecordFormat.TEXT_LINE:
            return whole, count
        for border in self.notes.borders(self._at + whole):
            inner = border - self._at
            if not 0 < inner < whole:
                continue
            stop, before = self.framing.hop(segment.map, 0, inner)
            if stop == inner:
                continue
            cause = f"it is cut off: it has {inner - stop:,} of {self.framing.needed(segment.map, stop, whole):,} bytes"
            self._error = faults.at(self, self._at + stop, self._records + before, cause, framed=True)
            if stop == 0:
                raise self._error
            if ends is not None:
                del ends[before:]
            return stop, before
        return whole, count

    def _finish(self, segment: Segment, whole: int, filled: int, count: int, ends: list[int] | None) -> tuple[int, int]:
        """Finish the stream: accept a last record that has no terminator, and check the agent's notes.

        Returns:
            The size of the segment's complete records, and the number of these records.
        """
        said = faults.of_agent(self)
        if said is not None:
            self._error = said
            if whole == 0:
                raise said
            return whole, count
        if filled > whole:
            end = self.framing.last(segment.map, whole, filled)
            if ends is not None:
                ends.append(end)
            return end, count + 1
        return whole, count

    def _skipped(self, segment: Segment, whole: int, count: int, ends: list[int] | None) -> int:
        """Return the offset in the segment of the first record that is not skipped."""
        if not self._skip:
            return 0
        if self._skip >= count:
            self._skip -= count
            return whole
        stops: list[int] = []
        self.framing.hop(segment.map, 0, whole, stops)
        begin = stops[self._skip - 1]
        self._skip = 0
        return begin

    def _next_free(self) -> Segment:
        if len(self._segments) < SEGMENTS:
            self._segments.append(POOL.take(self._limit))
            return self._segments[-1]
        self._turn = (self._turn + 1) % SEGMENTS
        return self._segments[self._turn - 1]
