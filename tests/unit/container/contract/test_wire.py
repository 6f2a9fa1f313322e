"""The toolkit's lines: what goes in comes out, whatever a script prints and however reads cut it."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.contract import wire

OUTPUT = st.lists(
    st.one_of(
        st.binary(max_size=30),
        st.sampled_from(
            [b"\n", b"\r", b"\r\n", b"[algo-9:rank 9] x\n", b"[algo-1]+", b"fleetfit-event {}\n", "ü学🚀".encode()]
        ),
    ),
    max_size=20,
).map(b"".join)


def fed(data: bytes, cuts: list[int], limit: int = wire.PIECE_LIMIT) -> list[bytes]:
    """The pieces of data that comes in reads cut at these places."""
    buffer = bytearray()
    pieces: list[bytes] = []
    places = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    for start, end in itertools.pairwise(places):
        buffer += data[start:end]
        pieces += wire.split_pieces(buffer, limit=limit)
    return pieces + wire.split_pieces(buffer, final=True, limit=limit)


@given(OUTPUT, st.lists(st.integers(0, 400), max_size=10))
def test_pieces_are_the_output_however_it_was_read(data: bytes, cuts: list[int]) -> None:
    pieces = fed(data, cuts)
    assert b"".join(pieces) == data
    assert pieces == fed(data, [])
    for piece in pieces[:-1]:
        assert piece.endswith((b"\n", b"\r"))
        assert len(piece.rstrip(b"\r\n").splitlines()) <= 1 or b"\x0b" in piece or b"\x0c" in piece or b"\x1c" in piece


@given(OUTPUT, st.lists(st.integers(0, 400), max_size=6), st.lists(st.integers(0, 4000), max_size=10))
def test_what_a_process_printed_survives_the_toolkits_lines(data: bytes, cuts: list[int], again: list[int]) -> None:
    tag = wire.prefix("algo-2", "rank 13").encode()
    stream = b"".join(wire.encode_piece(tag, piece) for piece in fed(data, cuts))
    items = [wire.decode_line(line) for line in fed(stream, again)]
    assert all(isinstance(item, wire.Piece) and (item.host, item.rank) == ("algo-2", 13) for item in items)
    assert b"".join(item.data for item in items if isinstance(item, wire.Piece)) == data


@given(st.binary(max_size=300), st.integers(1, 20), st.lists(st.integers(0, 300), max_size=6))
def test_long_lines_are_cut_and_read_back_whole(data: bytes, limit: int, cuts: list[int]) -> None:
    tag = wire.prefix("algo-1", "rank 0").encode()
    pieces = fed(data, cuts, limit)
    assert b"".join(pieces) == data
    assert all(len(piece) <= limit + 2 for piece in pieces)
    stream = b"".join(wire.encode_piece(tag, piece) for piece in pieces)
    decoded = [wire.decode_line(line) for line in fed(stream, cuts)]
    assert b"".join(item.data for item in decoded if isinstance(item, wire.Piece)) == data


def test_a_cut_piece_and_its_prefix_are_one_line_for_the_reader() -> None:
    tag = wire.prefix("h" * 63, "rank 1234567890").encode()
    piece = b"y" * wire.PIECE_LIMIT
    line = wire.encode_piece(tag, piece)
    assert wire.split_pieces(bytearray(line), limit=wire.LINE_LIMIT) == [line]


@given(
    st.builds(
        wire.Event,
        kind=st.text(max_size=20),
        host=st.text(max_size=20),
        time_ns=st.integers(0, 2**63),
        rank=st.none() | st.integers(0, 1000),
        attempt=st.integers(0, 9),
        generation=st.integers(0, 9),
        data=st.dictionaries(st.text(), st.one_of(st.text(), st.integers(), st.booleans(), st.none()), max_size=5),
    )
)
def test_an_event_is_one_line_and_reads_back_equal(event: wire.Event) -> None:
    line = event.to_line()
    assert line.count(b"\n") == 1 and line.endswith(b"\n") and b"\r" not in line
    assert wire.decode_line(line) == event


@pytest.mark.parametrize(
    "line",
    [
        b"fleetfit-event {\n",
        b"fleetfit-event []\n",
        b'fleetfit-event {"host": "algo-1"}\n',
        b'fleetfit-event {"kind": 3, "host": "x"}\n',
        b'fleetfit-event {"kind": "x"}\n',
        b"fleetfit-event " + b"[" * 100_000 + b"\n",
        b"fleetfit-event \xff\n",
        b"another program's words\n",
        b"[algo-1:rank 0]no space\n",
        b"[a b] x\n",
        b"",
    ],
)
def test_what_is_neither_is_kept_as_it_is(line: bytes) -> None:
    assert wire.decode_line(line) == line


def test_unknown_members_of_a_later_version_are_left_out() -> None:
    values = {"kind": "metric", "host": "algo-1", "time_ns": 1, "colour": "red"}
    assert wire.decode_line(b"fleetfit-event " + json.dumps(values).encode() + b"\n") == wire.Event(
        kind="metric", host="algo-1", time_ns=1
    )


@pytest.mark.parametrize(
    ("process", "rank"),
    [("rank 0", 0), ("rank 12", 12), ("rank", None), ("rank x", None), ("rank ²", None), ("ps", None), (None, None)],
)
def test_ranks_of_names(process: str | None, rank: int | None) -> None:
    assert wire.rank_of(process) == rank


def test_a_line_in_many_reads_takes_no_minutes() -> None:
    """Looking through everything again at each read would take minutes here."""
    buffer = bytearray()
    for _ in range(2000):
        buffer += b"x" * 4000
        assert wire.split_pieces(buffer) == []
    assert len(buffer) == 8_000_000
