"""Logs: whole, in order, and fast."""

from __future__ import annotations

import errno
import os
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from container.contract.wire import Piece, split_pieces
from estimators.job.errors import RecordError
from estimators.records.log_files import times_file
from estimators.records.logs import LogLine, LogReader, LogWriter
from estimators.records.record import JobRecord


def everything(reader: LogReader, *, final: bool = False) -> list[LogLine]:
    return [line for lines in reader.drain(final=final) for line in lines]


def test_nothing_is_lost_of_80_000_lines(record: JobRecord) -> None:
    writer = LogWriter(record)
    for number in range(20_000):
        for rank in range(4):
            writer.write(Piece(f"algo-{rank // 2 + 1}", f"rank {rank}", b"rank %d line %d\n" % (rank, number)))
    writer.flush()
    lines = everything(LogReader(record))
    for rank in range(4):
        assert [line.text for line in lines if line.rank == rank] == [f"rank {rank} line {n}" for n in range(20_000)]
    assert [line.time_ns for line in lines] == sorted(line.time_ns for line in lines)


def test_the_raw_log_is_what_was_printed(record: JobRecord) -> None:
    writer = LogWriter(record)
    pieces = [b"one\n", b"10%\r", b"20%\r", b"two\r\n", b"\xff\xfe\n", b"no end"]
    for piece in pieces:
        writer.write(Piece("algo-1", "rank 0", piece))
    writer.write(Piece("algo-1", None, b"the toolkit\n"))
    writer.flush()
    assert record.log_file("algo-1", "rank 0").read_bytes() == b"".join(pieces)
    assert times_file(record.log_file("algo-1", "rank 0")).stat().st_size == 16 * len(pieces)
    lines = everything(LogReader(record))
    assert [line.data for line in lines if line.process == "rank 0"] == pieces
    assert [line.text for line in lines if line.process is None] == ["the toolkit"]


@pytest.mark.parametrize("size", [300_000, 20 << 20])
def test_long_lines_are_whole(record: JobRecord, size: int) -> None:
    line = ("é" * (size // 2) + "\n").encode()
    writer = LogWriter(record)
    for piece in split_pieces(bytearray(line)):
        writer.write(Piece("algo-1", "rank 0", piece))
    writer.write(Piece("algo-1", "rank 1", b"short\n"))
    writer.flush()
    lines = everything(LogReader(record))
    assert b"".join(found.data for found in lines if found.rank == 0) == line
    assert [found.text for found in lines if found.rank == 1] == ["short"]


def test_portions_of_a_large_log_are_merged_by_time(record: JobRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("estimators.records.logs._READ_PIECES", 7)
    monkeypatch.setattr("estimators.records.logs._READ_LIMIT", 50)
    writer = LogWriter(record)
    for number in range(200):
        rank = number * 7919 % 3
        writer.write(Piece("algo-1", f"rank {rank}", b"x" * (number % 60) + b"%d\n" % number), 1000 + number)
    writer.flush()
    lines = everything(LogReader(record))
    assert [line.time_ns for line in lines] == list(range(1000, 1200))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.binary(max_size=30), st.integers(0, 20)), max_size=60), st.data())
def test_any_output_reads_back_in_order(output: list[tuple[int, bytes, int]], data: st.DataObject) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as home:
        record = JobRecord.create("job-1", home)
        record.release()
        writer, reader = LogWriter(record), LogReader(record)
        lines: list[LogLine] = []
        written = [(rank, piece, when) for rank, piece, when in output if piece]
        for rank, piece, when in written:
            writer.write(Piece("algo-1", f"rank {rank}", piece), when)
            if data.draw(st.booleans()):
                writer.flush()
                lines += everything(reader)
        writer.flush()
        lines += everything(reader)
        for rank in range(4):
            assert [line.data for line in lines if line.rank == rank] == [p for r, p, _ in written if r == rank]
        record.release()


def test_whoever_flushes_is_told_of_what_was_written_before(record: JobRecord) -> None:
    writer = LogWriter(record)
    writer.write(Piece("algo-1", "rank 0", b"x" * (1 << 20)))
    assert LogReader(record).poll() != []  # so much is written at once
    assert (writer.flush(), writer.flush()) == (True, False)
    writer.write(Piece("algo-1", "rank 0", b"a\n"))
    writer.start_attempt(1)
    assert (writer.flush(), writer.flush()) == (True, False)


def test_a_reader_follows_new_files_and_attempts(record: JobRecord) -> None:
    writer, reader = LogWriter(record), LogReader(record)
    assert reader.poll() == []
    writer.write(Piece("algo-1", "rank 0", b"a\n"))
    writer.flush()
    assert [line.text for line in reader.poll()] == ["a"]
    writer.write(Piece("algo-2", "rank 1", b"b\n"))
    writer.start_attempt(1)
    writer.write(Piece("algo-1", "rank 0", b"c\n"))
    writer.flush()
    assert [(line.text, line.attempt) for line in everything(reader)] == [("b", 0), ("c", 1)]
    assert reader.poll() == []


def test_a_reader_passes_over_all_but_the_last_lines_of_each_process(record: JobRecord) -> None:
    writer, reader = LogWriter(record), LogReader(record)
    for number in range(100):
        writer.write(Piece("algo-1", "rank 0", b"a%d\n" % number))
    writer.write(Piece("algo-1", "rank 1", b"b\n"))
    writer.flush()
    assert reader.skip(3) == 97
    assert sorted(line.text for line in everything(reader)) == ["a97", "a98", "a99", "b"]
    assert reader.skip(3) == 0, "what has been read is not passed over"
    writer.write(Piece("algo-1", "rank 0", b"a100\n"))
    writer.flush()
    assert [line.text for line in everything(reader)] == ["a100"]


def test_readers_choose(record: JobRecord) -> None:
    writer = LogWriter(record)
    for process in ("rank 1", "rank 11", "ps", None):
        writer.write(Piece("algo-1", process, f"{process}\n".encode()))
    writer.flush()
    assert [line.text for line in everything(LogReader(record, 1))] == ["rank 1"]
    assert everything(LogReader(record, host="algo-2")) == []


def test_two_readers_at_once_while_it_is_written(record: JobRecord) -> None:
    count = 5000
    found: list[list[LogLine]] = [[], []]

    def read(index: int) -> None:
        reader = LogReader(record)
        deadline = time.monotonic() + 30
        while len(found[index]) < 2 * count and time.monotonic() < deadline:
            found[index] += reader.poll()

    threads = [threading.Thread(target=read, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    writer = LogWriter(record)
    for number in range(count):
        for rank in range(2):
            writer.write(Piece("algo-1", f"rank {rank}", b"%d\n" % number))
        if number % 50 == 0:
            writer.flush()
    writer.flush()
    for thread in threads:
        thread.join()
    for lines in found:
        for rank in range(2):
            assert [int(line.data) for line in lines if line.rank == rank] == list(range(count))


def test_bytes_without_their_time_are_shown_at_the_end(record: JobRecord) -> None:
    writer = LogWriter(record)
    writer.write(Piece("algo-1", "rank 0", b"a\n"))
    writer.flush()
    with record.log_file("algo-1", "rank 0").open("ab") as file:
        file.write(b"b\nc")  # the supervisor was killed between the two writes
    reader = LogReader(record)
    assert [line.text for line in everything(reader)] == ["a"]
    assert [line.data for line in everything(reader, final=True)] == [b"b\n", b"c"]
    assert everything(reader, final=True) == []


def test_a_full_disk_loses_nothing_of_what_is_held(record: JobRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = LogWriter(record)
    writer.write(Piece("algo-1", "rank 0", b"a" * 100 + b"\n"))
    write = os.write
    room = [37]

    def full(descriptor: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = write(descriptor, bytes(data)[: room[0]])
        room[0] -= taken
        return taken

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(RecordError, match=r"rank-0\.log: No space left"):
            writer.flush()
    writer.write(Piece("algo-1", "rank 0", b"b\n"))
    writer.flush()
    assert [line.data for line in everything(LogReader(record))] == [b"a" * 100 + b"\n", b"b\n"]


def test_a_clock_that_is_set_back_keeps_the_order(record: JobRecord) -> None:
    writer = LogWriter(record)
    for number, when in enumerate([100, 50, 70, 200]):
        writer.write(Piece("algo-1", f"rank {number % 2}", b"%d\n" % number), when)
    writer.flush()
    for rank in range(2):
        texts = [line.text for line in everything(LogReader(record, rank))]
        assert texts == sorted(texts)


def test_a_removed_record_ends_the_reading(record: JobRecord) -> None:
    writer, reader = LogWriter(record), LogReader(record)
    writer.write(Piece("algo-1", "rank 0", b"a\n"))
    writer.flush()
    reader.poll()
    record.discard()
    assert reader.poll(final=True) == []
