"""The order of a host's log never changes once it was given out, and nothing is lost."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable

import pytest

from container.contract.wire import Piece, split_pieces
from estimators.records.logs import LogWriter
from estimators.records.record import JobRecord
from estimators.service.streams import EVENT_LIMIT, LogStream

NS = 1_000_000


Write = Callable[..., None]


@pytest.fixture
def write(record: JobRecord) -> Write:
    """Writes lines of a process, at a time in ms."""
    writer = LogWriter(record)

    def lines(process: str | None, *texts: str, at: int = 0) -> None:
        for text in texts:
            writer.write(Piece("algo-1", process, text.encode()), at * NS)
        writer.flush()

    return lines


def read(stream: LogStream, start: int = 0, *, over: bool = False) -> list[tuple[int, str]]:
    count = stream.extend(over=over)
    return [tuple(event) for event in stream.read(start, count)] if count > start else []  # type: ignore[misc]


def test_lines_of_all_processes_by_time_with_their_names(record: JobRecord, write: Write) -> None:
    write("rank 0", "a\n", at=1000)
    write("rank 1", "b\n", at=1001)
    write("rank 0", "c\r", "d", at=1002)
    write(None, "end\n", at=1003)
    stream = LogStream(record, "algo-1", labelled=True)
    assert read(stream) == [
        (1000, "[algo-1:rank 0] a"), (1001, "[algo-1:rank 1] b"), (1002, "[algo-1:rank 0] c"),
        (1002, "[algo-1:rank 0] d"), (1003, "[algo-1] end"),
    ]  # fmt: skip
    assert [text for _, text in read(LogStream(record, "algo-1", labelled=False))] == ["a", "b", "c", "d", "end"]
    assert [stream.first_at(at, 5) for at in (0, 1000, 1001, 1002, 1003, 2000)] == [0, 0, 1, 2, 4, 5]


@pytest.mark.parametrize(
    ("redraw", "end", "texts"),
    [
        ("\r{}%", "\n", ["begins", "0%", "100%", "200%", "249%", "ends"]),
        ("{}%\r", "done\n", ["begins", "0%", "100%", "200%", "249%", "done", "ends"]),
        ("{}%\r", "", ["begins", "0%", "100%", "200%", "249%", "ends"]),
    ],
    ids=["before", "behind", "open"],
)
def test_of_a_line_that_is_redrawn_one_state_a_second_and_the_last_one_are_events(
    redraw: str, end: str, texts: list[str], record: JobRecord
) -> None:
    printed = bytearray()
    writer = LogWriter(record)
    now = 0
    stream = LogStream(record, "algo-1", labelled=False, clock=lambda: now * NS)
    found: list[str] = []

    def write(text: str, at: int, *, final: bool = False) -> None:
        nonlocal now
        now = at
        printed.extend(text.encode())
        for piece in split_pieces(printed, final=final):
            writer.write(Piece("algo-1", "rank 0", piece), at * NS)
        writer.flush()
        found.extend(text for _, text in read(stream, len(found)))

    write("begins\n", 1000)
    for number in range(250):
        write(redraw.format(number), 1000 + number * 10)
    write(f"{end}ends\n", 4000, final=True)
    found.extend(text for _, text in read(stream, len(found), over=True))
    assert found == texts
    assert [text for _, text in read(LogStream(record, "algo-1", labelled=False), over=True)] == texts


def test_the_last_state_of_a_line_that_is_redrawn_until_the_end_is_an_event(record: JobRecord, write: Write) -> None:
    stream = LogStream(record, "algo-1", labelled=False, clock=lambda: 1500 * NS)
    write("rank 0", "1%\r", "2%\r", "3%\r", at=1000)
    write("rank 1", "other\n", at=1000)
    assert [text for _, text in read(stream)] == ["1%", "other"]
    assert [text for _, text in read(stream, over=True)] == ["1%", "other", "3%"]
    assert [text for _, text in read(stream, over=True)] == ["1%", "other", "3%"]


def test_a_line_that_is_redrawn_no_more_is_an_event_after_a_second(record: JobRecord, write: Write) -> None:
    now = 1500
    stream = LogStream(record, "algo-1", labelled=False, clock=lambda: now * NS)
    write("rank 0", "1%\r", "2%\r", at=1000)
    assert [text for _, text in read(stream)] == ["1%"]
    now = 2000
    assert [text for _, text in read(stream)] == ["1%", "2%"]


def test_a_line_that_is_cleared_between_two_states_loses_none(record: JobRecord, write: Write) -> None:
    stream = LogStream(record, "algo-1", labelled=False, clock=lambda: 1500 * NS)
    write("rank 0", "step 1\r", "      \r", "step 2\r", "step 3\r", "\n", at=1000)
    assert [text for _, text in read(stream)] == ["step 1", "step 3", ""]


def test_what_comes_late_comes_after_what_was_given_out(record: JobRecord, write: Write) -> None:
    """Two processes' files are not written in the same moment; times still never decrease."""
    stream = LogStream(record, "algo-1", labelled=False)
    write("rank 0", "late\n", at=2000)
    assert read(stream) == [(2000, "late")]
    times = record.log_file("algo-1", "rank 1").with_suffix(".times")
    times.with_suffix(".log").write_bytes(b"early\n")
    times.write_bytes((1000 * NS).to_bytes(8, "little") + (6).to_bytes(8, "little"))
    assert read(stream) == [(2000, "late"), (2000, "early")]
    assert read(LogStream(record, "algo-1", labelled=False)) == [(2000, "late"), (2000, "early")]


def test_another_endpoint_goes_on_where_the_first_was_killed(record: JobRecord, write: Write) -> None:
    write("rank 0", *(f"{number}\n" for number in range(10)), at=1000)
    assert len(read(LogStream(record, "algo-1", labelled=False))) == 10
    index = record.path / "service" / "algo-1.events"
    with open(index, "ab") as file:
        file.write(b"torn")  # it was killed while it wrote
    write("rank 0", "10\n", at=1001)
    assert [text for _, text in read(LogStream(record, "algo-1", labelled=False))] == [str(n) for n in range(11)]
    assert index.stat().st_size == 11 * 24
    assert index.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("room", [0, 24])
def test_a_disk_that_is_full_for_a_while_loses_no_line(
    record: JobRecord, write: Write, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    stream = LogStream(record, "algo-1", labelled=False)
    write("rank 0", "a\n", at=1000)
    assert [text for _, text in read(stream)] == ["a"]
    write("rank 0", "b\n", at=1001)
    write("rank 1", "c\n", at=1002)
    os_write = os.write

    def full(descriptor: int, data: bytes) -> int:
        if len(data) <= 48 - room:
            raise OSError(errno.ENOSPC, "No space left on device")
        return os_write(descriptor, data[:room])

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space left"):
            stream.extend(over=False)
    with open(record.path / "service" / "algo-1.sources", "ab") as file:
        file.write(b"0/ra")  # the same for the other file
    write("rank 0", "d\n", at=1003)
    assert [text for _, text in read(stream)] == ["a", "b", "c", "d"]
    assert [text for _, text in read(LogStream(record, "algo-1", labelled=False), over=True)] == ["a", "b", "c", "d"]


def test_lines_too_long_for_an_event_are_cut_between_characters(record: JobRecord, write: Write) -> None:
    line = "é" * (3 * EVENT_LIMIT)
    write("rank 0", line + "\n", "next\n", at=1000)
    stream = LogStream(record, "algo-1", labelled=False)
    count = stream.extend(over=False)
    parts = [stream.read(number, number + 1)[0].text for number in range(count)]
    assert "".join(parts) == line + "next"
    assert all(len(part.encode()) <= EVENT_LIMIT for part in parts)
    assert len(stream.read(0, count)) < count  # an answer is bounded
    assert read(LogStream(record, "algo-1", labelled=False), count - 1) == [(1000, "next")]


def test_what_a_killed_supervisor_wrote_without_its_time_comes_last(record: JobRecord, write: Write) -> None:
    write("rank 0", "a\n", at=1000)
    with open(record.log_file("algo-1", "rank 0"), "ab") as file:
        file.write(b"b\nc")
    stream = LogStream(record, "algo-1", labelled=False)
    assert [text for _, text in read(stream)] == ["a"]
    assert [text for _, text in read(stream, over=True)] == ["a", "b", "c"]
    assert [text for _, text in read(LogStream(record, "algo-1", labelled=False), over=True)] == ["a", "b", "c"]


def test_nothing_is_lost_or_twice_while_it_grows_and_two_readers_look(record: JobRecord) -> None:
    writer = LogWriter(record)
    total = 20_000
    done = threading.Event()

    def body() -> None:
        for number in range(total):
            writer.write(Piece("algo-1", f"rank {number % 3}", f"{number}\n".encode()))
            if number % 97 == 0:
                writer.flush()
        writer.flush()
        done.set()

    thread = threading.Thread(target=body)
    thread.start()
    streams = [LogStream(record, "algo-1", labelled=False) for _ in range(2)]
    seen: list[list[tuple[int, str]]] = [[], []]
    while True:
        over = done.is_set()
        for stream, found in zip(streams, seen, strict=True):
            count = stream.extend(over=over)
            while len(found) < count:
                found += [tuple(event) for event in stream.read(len(found), count)]  # type: ignore[misc]
        if over:
            break
    thread.join()
    assert seen[0] == seen[1]
    assert sorted(int(text) for _, text in seen[0]) == list(range(total))
    for rank in range(3):
        mine = [int(text) for _, text in seen[0] if int(text) % 3 == rank]
        assert mine == sorted(mine)
    times = [time for time, _ in seen[0]]
    assert times == sorted(times)
