"""Manifests: lists of objects (ManifestFile) and lines of labelled ones (AugmentedManifestFile). Pure parsing.

Source: "S3DataSource" and "Augmented Manifest Files for Training Jobs" (AWS documentation).
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Sequence

from container.contract.names import nearest

#: The end of an attribute's name whose value is a URI, the content of which is read.
REFERENCE = "-ref"

_WHITESPACE = re.compile(r"[ \t\r\n]*")


class ListingError(ValueError):
    """A manifest that cannot be read.

    Attributes:
        line: The line, from 1.
    """

    def __init__(self, line: int, text: str) -> None:
        super().__init__(f"line {line}: {text}")
        self.line = line


@dataclasses.dataclass(frozen=True)
class ManifestEntry:
    """One object that a manifest lists.

    Attributes:
        uri: The prefix and the entry, put together.
        key: The entry, as File mode's path.
        line: The manifest's line, from 1.
    """

    uri: str
    key: str
    line: int


@dataclasses.dataclass(frozen=True)
class Attribute:
    """One attribute of a line of an augmented manifest.

    Attributes:
        name: Its name.
        uri: The object whose content it is, for a name that ends in ``-ref``; else None.
        value: The value's bytes otherwise: a text as it is, anything else as JSON.
    """

    name: str
    uri: str | None
    value: bytes = b""


@dataclasses.dataclass(frozen=True)
class AugmentedEntry:
    """The attributes to read of one line.

    Attributes:
        line: The manifest's line, from 1.
        attributes: In the order of ``attribute_names``.
    """

    line: int
    attributes: tuple[Attribute, ...]


def parse_manifest(text: str) -> tuple[ManifestEntry, ...]:
    """Read ``[{"prefix": "s3://bucket/prefix/"}, "entry", …]``.

    Raises:
        ManifestError: it is not of that form, or lists an object twice.
    """
    prefix: str | None = None
    found: list[ManifestEntry] = []
    lines: dict[str, int] = {}
    for line, value in _elements(text):
        if prefix is None:
            prefix = _prefix(line, value)
            continue
        if not isinstance(value, str) or not value:
            raise ListingError(
                line, f"an entry must be a string, the part of a key after the prefix; got {json.dumps(value)[:80]}"
            )
        problem = key_problem(value)
        if problem is not None:
            raise ListingError(line, f"entry {value!r} {problem}")
        if value in lines:
            raise ListingError(line, f"entry {value!r} is already listed in line {lines[value]}")
        lines[value] = line
        found.append(ManifestEntry(prefix + value, value, line))
    if prefix is None:
        raise ListingError(1, 'it is empty; the first entry must be {"prefix": "s3://bucket/prefix/"}')
    if not found:
        raise ListingError(1, "it lists no objects")
    return tuple(found)


def key_problem(key: str) -> str | None:
    """Return why a key cannot be a path below the channel's folder; None when it can."""
    parts = key.split("/")
    if "\0" in key:
        return "has a NUL character, which no file's name can have"
    if "" in parts:
        return "begins or ends with a slash, or contains '//': a file cannot have that name"
    if "." in parts or ".." in parts:
        return "has '.' or '..' as a part, and could lead out of the channel's folder"
    if any(len(part.encode("utf-8", "surrogateescape")) > 255 for part in parts):
        return "has a part of more than 255 bytes, which no file's name can have"
    return None


def _prefix(line: int, value: object) -> str:
    example = '{"prefix": "s3://bucket/prefix/"}'
    if not isinstance(value, dict) or not isinstance(value.get("prefix"), str):
        raise ListingError(line, f"the first entry must be {example}, got {json.dumps(value)[:80]}")
    for name in value:
        if name != "prefix":
            raise ListingError(line, f"unknown key {name!r}; the first entry is {example}")
    prefix: str = value["prefix"]
    if not prefix.startswith(("s3://", "file:///", "/")):
        raise ListingError(line, f"prefix {prefix!r} must begin with s3://, file:/// or /")
    return prefix


def _elements(text: str) -> Iterator[tuple[int, object]]:
    """Yield the elements of a JSON array with the line on which each begins."""
    decoder = json.JSONDecoder()
    line, counted = 1, 0

    def line_of(place: int) -> int:
        nonlocal line, counted
        line += text.count("\n", counted, place)
        counted = place
        return line

    def skip(place: int) -> int:
        match = _WHITESPACE.match(text, place)
        assert match is not None  # it matches nothing too
        return match.end()

    place = skip(1 if text.startswith("\ufeff") else 0)
    if text[place : place + 1] != "[":
        raise ListingError(line_of(place), "a manifest is a JSON list: it must begin with '['")
    place = skip(place + 1)
    first = True
    while text[place : place + 1] != "]":
        if not first:
            if text[place : place + 1] != ",":
                raise ListingError(line_of(min(place, len(text))), "bad JSON: ',' or ']' is missing here")
            place = skip(place + 1)
        first = False
        try:
            value, end = decoder.raw_decode(text, place)
        except json.JSONDecodeError as error:
            raise ListingError(error.lineno, f"bad JSON: {error.msg} (column {error.colno})") from None
        except RecursionError:
            raise ListingError(line_of(place), "bad JSON: it is nested too deeply") from None
        yield line_of(place), value
        place = skip(end)
    rest = skip(place + 1)
    if rest != len(text):
        raise ListingError(line_of(rest), "there is more text after the end of the list")


def parse_augmented(lines: Iterator[str], names: Sequence[str]) -> Iterator[AugmentedEntry]:
    """Read the lines of an augmented manifest, each a JSON object; empty lines are skipped.

    Args:
        lines: The lines.
        names: The attributes to read, in this order.

    Raises:
        ManifestError: a line is not an object, lacks an attribute, or an attribute that names an object is no URI.
    """
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            raise ListingError(number, f"bad JSON: {error.msg} (column {error.colno})") from None
        except RecursionError:
            raise ListingError(number, "bad JSON: it is nested too deeply") from None
        if not isinstance(values, dict):
            raise ListingError(number, f"a line must be a JSON object, got {text.strip()[:80]!r}")
        yield AugmentedEntry(number, tuple(_attribute(number, name, values) for name in names))


def _attribute(line: int, name: str, values: dict[str, object]) -> Attribute:
    if name not in values:
        guess = nearest(name, values)
        hint = f" Did you mean {guess!r}?" if guess is not None else ""
        raise ListingError(line, f"attribute {name!r} is missing.{hint}")
    value = values[name]
    if name.endswith(REFERENCE):
        if not isinstance(value, str) or not value.startswith(("s3://", "file:///", "/")):
            raise ListingError(line, f"attribute {name!r} must be a URI, s3://bucket/key; got {json.dumps(value)[:80]}")
        return Attribute(name, value)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return Attribute(name, None, text.encode())
