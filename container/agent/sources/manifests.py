"""Parse manifests: lists of objects (ManifestFile) and lines about labelled objects (AugmentedManifestFile).

All functions are pure.

Source: "S3DataSource" and "Augmented Manifest Files for Training Jobs" (AWS documentation).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from container.contract.frozen import dataclass
from container.contract.names import is_text, nearest

#: Suffix of the names of attributes whose value is an object's URI. The object's content is read instead of the URI.
REFERENCE = "-ref"

#: The problem of a text for which :func:`is_text` returns False.
_NO_TEXT = r"has half of a surrogate pair (\ud800 to \udfff), which is not a character"
#: The problem of JSON that Python cannot parse, although its syntax is correct.
_UNREADABLE = "bad JSON: it is nested too deeply, or a number has too many digits"
_WHITESPACE = re.compile(r"[ \t\r\n]*")


class ListingError(ValueError):
    """Raised if a manifest cannot be parsed.

    Attributes:
        line: The number of the manifest's line, from 1.
    """

    def __init__(self, line: int, text: str) -> None:
        super().__init__(f"line {line}: {text}")
        self.line = line


@dataclass(frozen=True)
class ManifestEntry:
    """One object that a manifest lists.

    Attributes:
        uri: The URI of the object: the manifest's prefix followed by the entry.
        key: The text of the entry, which is the object's path in File mode.
        line: The number of the manifest's line, from 1.
    """

    uri: str
    key: str
    line: int


@dataclass(frozen=True)
class Attribute:
    """One attribute in a line of an augmented manifest.

    Attributes:
        name: Name of the attribute.
        uri: The URI of the object whose content is read, if the name ends with ``-ref``. Otherwise None.
        value: The bytes of the value, if the name does not end with ``-ref``. A text is not changed. Any other value is
            encoded as JSON.
    """

    name: str
    uri: str | None
    value: bytes = b""


@dataclass(frozen=True)
class AugmentedEntry:
    """The attributes to read in one line of an augmented manifest.

    Attributes:
        line: The number of the manifest's line, from 1.
        attributes: The attributes, in the order of the channel's ``attribute_names``.
    """

    line: int
    attributes: tuple[Attribute, ...]


def parse_manifest(text: str) -> tuple[ManifestEntry, ...]:
    """Parse a manifest of the form ``[{"prefix": "s3://bucket/prefix/"}, "entry", …]``.

    Raises:
        ListingError: the text does not have this form, or lists an object twice.
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
    """Return why a key cannot be a path below the channel's folder. Return None if the key can be such a path."""
    parts = key.split("/")
    if "\0" in key:
        return "has a NUL character, which no file's name can have"
    if "" in parts:
        return "begins or ends with a slash, or contains '//': a file cannot have that name"
    if "." in parts or ".." in parts:
        return "has '.' or '..' as a part, and could lead out of the channel's folder"
    if not is_text(key, "surrogateescape"):
        return _NO_TEXT
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
    if not is_text(prefix, "surrogateescape"):
        raise ListingError(line, f"prefix {prefix!r} {_NO_TEXT}")
    if not prefix.startswith(("s3://", "file:///", "/")):
        raise ListingError(line, f"prefix {prefix!r} must begin with s3://, file:/// or /")
    return prefix


def _elements(text: str) -> Iterator[tuple[int, object]]:
    """Yield each element of a JSON array with the number of the line on which the element begins."""
    decoder = json.JSONDecoder()
    line, counted = 1, 0

    def line_of(place: int) -> int:
        nonlocal line, counted
        line += text.count("\n", counted, place)
        counted = place
        return line

    def skip(place: int) -> int:
        match = _WHITESPACE.match(text, place)
        assert match is not None  # the pattern also matches an empty text
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
        except (RecursionError, ValueError):
            raise ListingError(line_of(place), _UNREADABLE) from None
        yield line_of(place), value
        place = skip(end)
    rest = skip(place + 1)
    if rest != len(text):
        raise ListingError(line_of(rest), "there is more text after the end of the list")


def parse_augmented(lines: Iterator[str], names: Sequence[str]) -> Iterator[AugmentedEntry]:
    """Parse the lines of an augmented manifest. Each line is a JSON object. Empty lines are skipped.

    Args:
        lines: The lines.
        names: The names of the attributes to read, in the order in which they are returned.

    Raises:
        ListingError: a line is not an object, lacks an attribute, or the value of a ``-ref`` attribute is not a URI.
    """
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            raise ListingError(number, f"bad JSON: {error.msg} (column {error.colno})") from None
        except (RecursionError, ValueError):
            raise ListingError(number, _UNREADABLE) from None
        if not isinstance(values, dict):
            raise ListingError(number, f"a line must be a JSON object, got {text.strip()[:80]!r}")
        yield AugmentedEntry(number, tuple(_attribute(number, name, values) for name in names))


def _attribute(line: int, name: str, values: dict[str, object]) -> Attribute:
    if name not in values:
        guess = nearest(name, values)
        hint = f" Did you mean {guess!r}?" if guess is not None else ""
        raise ListingError(line, f"attribute {name!r} is missing.{hint}")
    value = values[name]
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if not is_text(text, "surrogateescape" if name.endswith(REFERENCE) else "strict"):
        raise ListingError(line, f"attribute {name!r} {_NO_TEXT}")
    if name.endswith(REFERENCE):
        if not isinstance(value, str) or not value.startswith(("s3://", "file:///", "/")):
            raise ListingError(line, f"attribute {name!r} must be a URI, s3://bucket/key; got {json.dumps(value)[:80]}")
        return Attribute(name, value)
    return Attribute(name, None, text.encode())
