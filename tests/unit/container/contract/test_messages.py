"""Messages are lines of JSON, whatever the pieces in which they come."""

from __future__ import annotations

import json
import random
import signal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from container.contract import messages
from container.contract.messages import Decoder, Message, MessageError

VALUES = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats(allow_nan=False) | some.text(),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text(), inner, max_size=3),
    max_leaves=8,
)
MESSAGES = some.builds(lambda op, more: {**more, "op": op}, some.text(), some.dictionaries(some.text(), VALUES))


def decode_all(decoder: Decoder, *pieces: bytes) -> list[Message]:
    found: list[Message] = []
    for piece in pieces:
        decoder.feed(piece)
        while (message := decoder.take()) is not None:
            found.append(message)
    return found


SOME: list[dict[str, Any]] = [
    {"op": "go"},
    {"op": "place", "environment": {"A": "x\ny\r\n\0", "B": "ü\u2028\U0001f600", "C": "\udcff"}},
    {"op": "", "n": [1, 2.5, None, True, {"deep": [[]]}]},
]


def test_messages_come_byte_by_byte_and_several_at_once() -> None:
    data = b"".join(messages.encode(message) for message in SOME) * 3
    assert decode_all(Decoder(), *(data[at : at + 1] for at in range(len(data)))) == SOME * 3
    assert decode_all(Decoder(), data) == SOME * 3


@given(some.lists(MESSAGES, max_size=5), some.randoms(use_true_random=False))
def test_any_messages_in_any_pieces(sent: list[dict[str, Any]], chance: random.Random) -> None:
    data = b"".join(map(messages.encode, sent))
    assert data.count(b"\n") == len(sent)
    cuts = sorted(chance.randrange(len(data) + 1) for _ in range(chance.randrange(10)))
    pieces = [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    assert decode_all(Decoder(), *pieces) == sent


@given(some.binary(max_size=200), some.integers(0, 200))
def test_garbage_is_refused_and_what_follows_is_read(garbage: bytes, cut: int) -> None:
    decoder = Decoder(limit=100)
    whole = garbage + b"\n" + messages.encode({"op": "after"})
    found: list[Message] = []
    for piece in (whole[:cut], whole[cut:]):
        decoder.feed(piece)
        while True:
            try:
                message = decoder.take()
            except MessageError:
                continue
            if message is None:
                break
            found.append(message)
    assert found[-1] == {"op": "after"}


@pytest.mark.parametrize(
    "line",
    [
        b"", b"[1]", b'"op"', b"3", b"null", b"nonsense", b"stop", b"\xff\xfe", b'{"op":"x"} {}', b'{"op":"x"',
        b"[" * 100_000, b'{"a":' * 100_000, b"9" * 5000, '{"op":"x"}'.encode("utf-16"), b'\xef\xbb\xbf{"op":"x"}',
    ],
)  # fmt: skip
def test_a_line_that_is_no_object_is_refused(line: bytes) -> None:
    decoder = Decoder()
    decoder.feed(line + b'\n{"op":"after"}\n')
    with pytest.raises(MessageError, match=rf"^a line of {len(line)} bytes is not a JSON object$"):
        decoder.take()
    assert decoder.take() == {"op": "after"} and decoder.take() is None


@pytest.mark.parametrize("line", [b"{}", b'{"op":3}', b'{"op":null}', b'{"kind":"x"}'])
def test_a_message_has_its_key(line: bytes) -> None:
    with pytest.raises(MessageError, match="a message has no 'op'"):
        messages.decode(line)
    assert isinstance(messages.decode(line, key=None), dict)
    assert messages.decode(b'{"kind":"x"}', key="kind") == {"kind": "x"}


def test_what_is_refused_is_not_shown() -> None:
    with pytest.raises(MessageError) as caught:
        messages.decode(b'{"token": "sesame"')
    assert "sesame" not in str(caught.value)


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
def test_a_line_is_bounded(size: int) -> None:
    decoder = Decoder(limit=100)
    line = messages.encode({"op": "x" * 91})
    assert len(line) == 101
    data = line + b"y" * 500 + b"\n" + line
    found: list[Message] = []
    errors: list[str] = []
    for at in range(0, len(data), size):
        decoder.feed(data[at : at + size])
        assert len(decoder._buffer) <= 100 + size
        while True:
            try:
                message = decoder.take()
            except MessageError as error:
                errors.append(str(error))
                continue
            if message is None:
                break
            found.append(message)
    assert found == [{"op": "x" * 91}] * 2
    assert errors == ["a line is over the limit of 100 bytes"]


def test_messages_are_json_as_everybody_writes_it() -> None:
    values = [*SOME, {"op": "x", "f": float("inf"), "e": signal.SIGTERM, "t": (1, 2), 3: {None: -0.0}}]
    for message in values:
        assert messages.encode(message) == json.dumps(message, separators=(",", ":")).encode() + b"\n"
    with pytest.raises(TypeError, match="value of type bytes"):
        messages.encode({"op": b""})


def test_too_long_a_message_is_not_sent() -> None:
    assert len(messages.encode({"op": "x" * 91}, limit=100)) == 101
    with pytest.raises(MessageError, match="a message of 101 bytes is over the limit of 100"):
        messages.encode({"op": "x" * 92}, limit=100)
