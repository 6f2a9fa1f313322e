"""Check a value against a shape of botocore's model. Report each problem as data, so that each caller can write its own
error messages.

A shape is the description of a type in the model of an AWS service.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from estimators.job.service_model import Shapes

#: Java's character classes in the model's patterns, and their Python equivalents inside brackets.
_JAVA_CLASSES = {
    r"\p{Alnum}": "a-zA-Z0-9",
    r"\p{L}": r"\w",
    r"\p{N}": r"\w",
    r"\p{Z}": " \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000",
}

#: Type of the model -> the Python types of its values, and a description for messages.
_TYPES: Mapping[str, tuple[tuple[type, ...], str]] = {
    "structure": ((Mapping,), "a structure (a dict)"),
    "map": ((Mapping,), "a map (a dict)"),
    "list": ((list, tuple), "a list"),
    "string": ((str,), "a string"),
    "boolean": ((bool,), "True or False"),
    "integer": ((int,), "a whole number"),
    "long": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
    "double": ((int, float), "a number"),
    "timestamp": ((int, float), "a time in seconds since the epoch"),
    "blob": ((str,), "a string"),
}
_BITS = {"integer": 31, "long": 63}
_SURROGATES = re.compile(r"[\ud800-\udfff]")
#: The last second of the year 9999, because a year must have four digits.
_LAST_TIME = 253_402_300_799


class Problem(NamedTuple):
    """A problem of a value.

    Attributes:
        what: The kind of problem. ``type``: the value has the wrong type. ``missing``: a structure lacks a required
            member. ``unknown``: a structure has an unknown member. ``enum``, ``pattern``: a string is not one of the
            allowed strings, or does not match the pattern. ``short``, ``long``: a string, list or map has a length
            out of range. ``small``, ``large``: a number is out of range. ``unicode``: a string is not valid Unicode.
            ``overflow``: a number has too many bits for its type.
        value: The value. For ``unknown``, the name of the member. For ``missing``, None.
        limit: What the shape requires: a description of the type, the known members, the allowed strings, the pattern,
            or the limit that was violated. For ``overflow``, the name of the type. For ``missing``, None.
        kind: The type in the shape, such as ``list`` or ``string``. For ``missing`` and ``unknown``, ``structure``.
        path: The path of the value: the names of members, separated by dots, with ``[]`` for the items of a list.
            ``Environment key`` for a key of the map ``Environment``. For ``missing`` and ``unknown``, the path of the
            structure.
        steps: The path of the value as pairs. The pair is ``("member", name)`` for a member, ``("item", index)`` for an
            item of a list, ``("key", key)`` for a key of a map, and ``("entry", key)`` for the value of a map's key.
            For ``missing``, the last pair names the missing member.
    """

    what: str
    value: Any
    limit: Any
    kind: str
    path: str
    steps: tuple[tuple[str, Any], ...]


def find(
    shapes: Shapes, name: str, value: Any, path: str = "", steps: tuple[tuple[str, Any], ...] = ()
) -> Iterator[Problem]:
    """Yield the problems of a value.

    Args:
        shapes: The shapes by name.
        name: The name of the value's shape.
        value: The value.
        path: The path of the value, as in :class:`Problem`.
        steps: The path of the value as pairs, as in :class:`Problem`.
    """
    shape = shapes[name]
    kind: str = shape["type"]

    def wrong(what: str, limit: Any) -> Problem:
        return Problem(what, value, limit, kind, path, steps)

    def bounds(size: float, low: float | None, words: tuple[str, str]) -> Iterator[Problem]:
        high = shape.get("max")
        if low is not None and size < low:
            yield wrong(words[0], low)
        elif high is not None and size > high:
            yield wrong(words[1], high)

    if not _has_type(value, kind):
        yield wrong("type", _TYPES[kind][1])
    elif kind == "structure":
        members: Mapping[str, Any] = shape["members"]
        for member in shape.get("required", ()):
            if value.get(member) is None:
                yield Problem("missing", None, None, kind, path, (*steps, ("member", member)))
        for member, item in value.items():
            if member not in members:
                yield Problem("unknown", member, members, kind, path, steps)
            elif item is not None:
                inner = f"{path}.{member}" if path else member
                yield from find(shapes, members[member]["shape"], item, inner, (*steps, ("member", member)))
    elif kind in ("list", "map", "string"):
        if kind == "string" and _SURROGATES.search(value):
            yield wrong("unicode", "valid Unicode")
        wrong_length = list(bounds(len(value), shape.get("min", 0), ("short", "long")))
        if kind == "list":
            yield from wrong_length
            for number, item in enumerate(value):
                yield from find(shapes, shape["member"]["shape"], item, f"{path}[]", (*steps, ("item", number)))
        elif kind == "map":
            yield from wrong_length
            for key, item in value.items():
                yield from find(shapes, shape["key"]["shape"], key, f"{path} key", (*steps, ("key", key)))
                yield from find(shapes, shape["value"]["shape"], item, path, (*steps, ("entry", key)))
        elif "enum" in shape:
            if value not in shape["enum"]:
                yield wrong("enum", shape["enum"])
        elif wrong_length:
            yield from wrong_length
        elif (pattern := compiled(shape.get("pattern"))) is not None and pattern.fullmatch(value) is None:
            yield wrong("pattern", shape["pattern"])
    elif kind in ("integer", "long", "float", "double"):
        if kind in _BITS and abs(value) >= 1 << _BITS[kind]:
            yield wrong("overflow", kind)
        yield from bounds(value, shape.get("min"), ("small", "large"))


def _has_type(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if isinstance(value, float) and not math.isfinite(value):
        return False
    if kind == "timestamp":
        return isinstance(value, int | float) and 0 <= value <= _LAST_TIME
    return isinstance(value, _TYPES[kind][0])


@functools.cache
def compiled(pattern: str | None) -> re.Pattern[str] | None:
    """Compile a pattern of the model. Return None if there is no pattern or every text matches the pattern."""
    if pattern is None or pattern == ".*":
        return None
    for java, python in _JAVA_CLASSES.items():
        pattern = pattern.replace(java, python)
    return re.compile(pattern)
