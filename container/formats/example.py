"""Decode and encode ``tf.train.Example``, the usual content of TFRecords, without TensorFlow or Protobuf.

Source: tensorflow/core/example/example.proto, feature.proto. An Example has one field, Features, which maps names to
lists. The elements of a list are byte strings, 32-bit floats or 64-bit integers.
"""

from __future__ import annotations

import numbers
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Feature = list[bytes] | list[float] | list[int]

_BYTES, _FLOATS, _INTEGERS = 1, 2, 3
_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5


def decode(record: bytes) -> dict[str, Feature]:
    """Return the features of an Example by their names.

    Args:
        record: The content of a record, without its framing.

    Raises:
        ValueError: the record is not an Example.
    """
    try:
        return {
            name: feature
            for _, features in _fields(record, 1)
            for _, entry in _fields(features, 1)
            for name, feature in [_entry(entry)]
        }
    except (IndexError, struct.error, TypeError, UnicodeDecodeError) as error:
        raise ValueError(f"a record of {len(record):,} bytes is not a tf.train.Example: {error}") from error


def encode(features: Mapping[str, Feature | Sequence[float] | Sequence[int]]) -> bytes:
    """Encode features as an Example. The names are sorted, so that equal features result in equal bytes.

    Raises:
        TypeError: a list contains a value that is not bytes, a float or an integer, or mixes bytes with numbers.
        ValueError: an integer needs more than 64 bits, including the sign.
    """
    entries = b"".join(
        _field(1, _field(1, name.encode()) + _field(2, _feature(name, features[name]))) for name in sorted(features)
    )
    return _field(1, entries)


def _entry(entry: bytes) -> tuple[str, Feature]:
    name, feature = "", b""
    for number, value in _fields(entry):
        if number == 1:
            name = bytes(value).decode()
        elif number == 2:
            feature = value
    for kind, content in _fields(feature):
        if kind == _BYTES:
            return name, [value for _, value in _fields(content, 1)]
        if kind == _FLOATS:
            return name, [number for _, value in _fields(content, 1) for number in _floats(value)]
        if kind == _INTEGERS:
            return name, [number for _, value in _fields(content, 1) for number in _integers(value)]
    return name, []


def _fields(data: bytes, wanted: int | None = None) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the content of each field of a message. The content of a field that has a single number
    is yielded in the encoding of packed numbers.

    Args:
        data: The encoded message.
        wanted: The number of the fields to yield. None for all fields.
    """
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        number, kind = tag >> 3, tag & 7
        if kind == _DELIMITED:
            size, position = _varint(data, position)
        elif kind == _VARINT:
            size = _varint(data, position)[1] - position
        elif kind in (_FIXED32, _FIXED64):
            size = 4 if kind == _FIXED32 else 8
        else:
            raise TypeError(f"there is no field of kind {kind}")
        if position + size > len(data):
            raise IndexError("it is cut off")
        if wanted is None or number == wanted:
            yield number, data[position : position + size]
        position += size


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position


def _floats(packed: bytes) -> tuple[float, ...]:
    return struct.unpack(f"<{len(packed) // 4}f", packed)


def _integers(packed: bytes) -> Iterator[int]:
    position = 0
    while position < len(packed):
        value, position = _varint(packed, position)
        yield value - (1 << 64) if value >= 1 << 63 else value


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | _DELIMITED]) + _packed_varint(len(content)) + content


def _packed_varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _feature(name: str, values: Sequence[Any]) -> bytes:
    kinds: set[Any] = {type(value) for value in values}
    if kinds <= {bytes}:
        return _field(_BYTES, b"".join(_field(1, value) for value in values))
    if all(issubclass(kind, numbers.Integral) and kind is not bool for kind in kinds):
        whole = [int(value) for value in values]
        if min(whole) < -(1 << 63) or max(whole) >= 1 << 63:
            raise ValueError(
                f"feature {name!r} has an integer beyond 64 bits with a sign: {min(whole)} to {max(whole)}."
            )
        return _field(_INTEGERS, _field(1, b"".join(map(_packed_varint, whole))))
    if all(issubclass(kind, numbers.Real) and kind is not bool for kind in kinds):
        return _field(_FLOATS, _field(1, struct.pack(f"<{len(values)}f", *values)))
    raise TypeError(f"feature {name!r} must be a list of bytes, of floats or of integers, got {kinds}.")
