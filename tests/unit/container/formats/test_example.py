"""Examples without TensorFlow: what it writes is read, and what is written is what it would write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.formats import example, tfrecord

#: TensorFlow 2.21's ``Example.SerializeToString(deterministic=True)`` of the features below.
WRITTEN = bytes.fromhex(
    "0a380a0c0a016212070a050a01780a000a110a0166120c120a0a080000c03f000000c00a150a016e12101a0e0a0cffffffffffffffffff01ac02"
)
FEATURES: dict[str, Any] = {"b": [b"x", b""], "f": [1.5, -2.0], "n": [-1, 300]}

ANY = st.dictionaries(
    st.text(max_size=5),
    st.one_of(
        st.lists(st.binary(max_size=9), min_size=1),
        st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1),
        st.lists(st.floats(width=32, allow_nan=False), min_size=1),
    ),
)


def test_tensorflows_bytes() -> None:
    assert example.encode(FEATURES) == WRITTEN
    assert example.decode(WRITTEN) == FEATURES


def test_numbers_that_are_not_packed() -> None:
    feature = bytes([0x12, 10, 0x0D, 0, 0, 0xC0, 0x3F, 0x0D, 0, 0, 0, 0xC0])  # float_list with two 32-bit fields
    entry = bytes([0x0A, 1, 0x66, 0x12, len(feature)]) + feature
    features = bytes([0x0A, len(entry)]) + entry
    assert example.decode(bytes([0x0A, len(features)]) + features) == {"f": [1.5, -2.0]}


@given(ANY)
def test_what_is_written_is_read(features: dict[str, Any]) -> None:
    assert example.decode(example.encode(features)) == features


@given(st.binary(max_size=40))
def test_whatever_else_is_an_example_or_a_value_error(record: bytes) -> None:
    try:
        example.decode(record)
    except ValueError as error:
        assert "is not a tf.train.Example" in str(error)


def test_lists_of_something_else_are_refused() -> None:
    with pytest.raises(TypeError, match="feature 'x' must be a list of bytes"):
        example.encode({"x": ["text"]})  # type: ignore[dict-item]
    for beyond in (2**63, -(2**63) - 1, np.uint64(2**64 - 1)):
        with pytest.raises(ValueError, match="feature 'x' has an integer beyond 64 bits with a sign"):
            example.encode({"x": [0, beyond]})


def test_numbers_of_numpy() -> None:
    features = {"n": np.array([-1, 300]), "f": np.array([1.5, -2.0], np.float32), "b": FEATURES["b"]}
    assert example.encode(features) == WRITTEN  # type: ignore[arg-type]


def test_files_of_records(tmp_path: Path) -> None:
    file = tmp_path / "x.tfrecord"
    file.write_bytes(b"".join(map(tfrecord.encode, [b"one", b"", WRITTEN])))
    assert list(tfrecord.read(file)) == [b"one", b"", WRITTEN]
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    with pytest.raises(ValueError, match="the record at byte 35 is cut off"):
        list(tfrecord.read(file))
    file.write_bytes(whole + b"more")
    with pytest.raises(ValueError, match=r"x\.tfrecord: no TFRecord begins at byte"):
        list(tfrecord.read(file))
