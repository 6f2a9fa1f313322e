"""Read the values of a job file with their lines, and replace ``${env:NAME}`` by environment variables.

The types of values follow YAML 1.2, of which JSON is a part. For example, ``1e-3`` is a number, and ``no`` is a text.
PyYAML follows YAML 1.1. Therefore PyYAML only parses the file to nodes, and this module converts the nodes to values:
texts, numbers, booleans, None, lists and mappings.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from container.contract.names import shown
from estimators.job.errors import ConfigurationError

Keys = tuple[str | int, ...]

_MOST_NODES = 50_000  # nested aliases can expand to a huge number of nodes
_MOST_DEPTH = 40
_MOST_DIGITS = 400

_INTEGER = re.compile(r"[-+]?[0-9]+")
_OCTAL = re.compile(r"0o[0-7]+")
_HEXADECIMAL = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_INFINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_CONSTANTS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
#: Matches ``${env:NAME}``. ``$${env:NAME}`` stands for the literal text ``${env:NAME}``.
VARIABLE = re.compile(r"\$(?P<escaped>\$*)\{env:(?P<name>[^}]*)\}")
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TEXT_TAG = "tag:yaml.org,2002:str"


@dataclasses.dataclass
class Document:
    """The arguments of a job from a job file, from the command line, or from both.

    Attributes:
        values: The arguments by their names.
        path: The name of the job file for error messages, or None if there is no job file.
        folder: The folder to which relative paths in the file refer.
        lines: The line number of each value in the file, from 1. The key is the path of the value: the mapping keys and
            list positions that lead to it.
    """

    values: dict[str, Any]
    path: str | None = None
    folder: Path = dataclasses.field(default_factory=Path.cwd)
    lines: dict[Keys, int] = dataclasses.field(default_factory=dict)

    def place(self, path: Keys) -> str:
        """Return the beginning of an error message about a value: the file and the line, such as ``job.yaml:7: ``.

        Return ``""`` if the value does not come from the file.

        Args:
            path: The mapping keys and list positions that lead to the value.
        """
        if self.path is None or path not in self.lines:
            return ""
        return f"{self.path}:{self.lines[path]}: "

    def override(self, name: str, value: Any, *, merged: bool) -> None:
        """Replace a value of the file by a value of the command line.

        Args:
            name: The argument's name.
            value: The argument's value.
            merged: Whether to merge a mapping into the mapping in the file. With False, the whole value is replaced.
        """
        before = self.values.get(name)
        if merged and isinstance(before, dict) and isinstance(value, Mapping):
            for key in value:
                self._forget((name, key))
            before.update(value)
            return
        self._forget((name,))
        self.values[name] = value

    def _forget(self, path: Keys) -> None:
        for known in [one for one in self.lines if one[: len(path)] == path]:
            del self.lines[known]

    @contextlib.contextmanager
    def located(self) -> Iterator[None]:
        """Return a context that adds the file and the line to the message of a ConfigurationError."""
        try:
            yield
        except ConfigurationError as error:
            if not getattr(error, "_located", False):
                self.locate(error)
            raise

    def locate(self, error: ConfigurationError, within: Keys = ()) -> None:
        """Add the file and the line of the wrong value at the beginning of an error's message.

        The wrong value is the innermost value in the file whose name is in the message.

        Args:
            error: The error.
            within: The path of the value in which to search, or an empty tuple to search in the whole file.
        """
        text = str(error)
        said = re.split(r" Did you mean | Allowed: ", text)[0]  # do not search for the suggested names
        best = max(
            (path for path in self.lines if path[: len(within)] == within),
            key=lambda path: _mentions(said, path, self._at(path)),
            default=within,
        )
        if not _mentions(said, best, self._at(best))[0]:
            best = within
        error.args = (self.place(best) + text, *error.args[1:])
        error._located = True  # type: ignore[attr-defined]

    def _at(self, path: Keys) -> Any:
        value: Any = self.values
        for part in path:
            try:
                value = value[part]
            except (KeyError, IndexError, TypeError):
                return None
        return value


def _mentions(text: str, path: Keys, value: Any) -> tuple[bool, bool, int, int]:
    """Return a sort key for a value. The value with the greatest key is the most probable cause of an error message.

    Returns:
        Whether the message contains the value's name, whether it contains the value, the depth of the value in the
        file, and the negative position of the name in the message.
    """
    name = next((part for part in reversed(path) if isinstance(part, str)), "")
    found = re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) if name else None
    if found is None:
        return False, False, 0, 0
    plain = isinstance(value, str | int | float) and not isinstance(value, bool)
    return True, plain and shown(value) in text, len(path), -found.start()


def read(path: str) -> Document:
    """Read a job file.

    Args:
        path: The file's path. ``-`` means standard input. In a job file from standard input, relative paths refer to
            the working directory.

    Raises:
        ConfigurationError: the file cannot be read, is not YAML, or contains something that job files cannot contain.
            The message names the line.
    """
    try:
        import yaml
    except ImportError:
        raise ConfigurationError("job files need PyYAML: `fleetfit install jobfiles`.") from None
    text, name = _text(path)
    try:
        root = yaml.compose(text, Loader=yaml.BaseLoader)  # it loads all values as texts
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark is not None else ""
        problem = " ".join(part for part in (error.context, error.problem) if part)
        raise ConfigurationError(f"{name}{line}: this is not YAML: {problem}.") from None
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{name}: this is not YAML: {' '.join(str(error).split())}.") from None
    except RecursionError:
        raise ConfigurationError(f"{name}: the job file is nested too deeply.") from None
    if root is None:
        raise ConfigurationError(f"{name}: the file is empty; a job file needs at least an entry_point.")
    reader = _YamlReader(name)
    values = reader.value(root, ())
    if not isinstance(values, dict):
        raise ConfigurationError(
            f"{name}:1: a job file must be a mapping of arguments to values, such as `entry_point: train.py`."
        )
    folder = Path.cwd() if path == "-" else Path(path).absolute().parent
    return Document(values, name, folder, reader.lines)


def _text(path: str) -> tuple[str, str]:
    name = "standard input" if path == "-" else path
    try:
        raw = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
        return raw.decode("utf-8-sig"), name
    except UnicodeDecodeError:
        raise ConfigurationError(f"{name}: the job file is not UTF-8 text.") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigurationError(f"-f {name}: the job file cannot be read: {reason}.") from None


class _YamlReader:
    """A converter that turns YAML nodes into values, and records the lines of the values."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._nodes = 0
        self.lines: dict[Keys, int] = {}

    def value(self, node: Any, path: Keys) -> Any:
        """Convert a node to a value.

        Args:
            node: The YAML node.
            path: The mapping keys and list positions that lead to the node.

        Raises:
            ConfigurationError: the node contains something that job files cannot contain, such as a YAML tag, or the
                file is too large.
        """
        self._nodes += 1
        if self._nodes > _MOST_NODES or len(path) > _MOST_DEPTH:
            raise self._error(node, "the job file is too large or nested too deeply, or a value contains itself")
        self.lines.setdefault(path, node.start_mark.line + 1)
        if node.id == "mapping":
            return self._mapping(node, path)
        if node.id == "sequence":
            self._check_tag(node, "tag:yaml.org,2002:seq")
            return [self.value(item, (*path, place)) for place, item in enumerate(node.value)]
        self._check_tag(node, _TEXT_TAG)
        return self._scalar(node)

    def _mapping(self, node: Any, path: Keys) -> dict[str, Any]:
        self._check_tag(node, "tag:yaml.org,2002:map")
        values: dict[str, Any] = {}
        for key, item in node.value:
            if key.id != "scalar":
                raise self._error(key, "a name must be a string")
            place = (*path, key.value)
            if key.value in values:
                raise self._error(key, f"{shown(key.value)} is given twice, first in line {self.lines[place]}")
            self.lines[place] = key.start_mark.line + 1
            values[key.value] = self.value(item, place)
        return values

    def _scalar(self, node: Any) -> Any:
        text = VARIABLE.sub(lambda match: self._variable(node, match), node.value)
        return plain(text) if node.style is None else text

    def _variable(self, node: Any, match: re.Match[str]) -> str:
        name = match["name"]
        if match["escaped"]:
            return match[0][1:]
        if not _VARIABLE_NAME.fullmatch(name):
            problem = f"{shown(match[0])} is not a valid variable: write ${{env:NAME}}, or $${{ for a literal ${{"
            raise self._error(node, problem)
        if name not in os.environ:
            raise self._error(node, f"the environment variable {name} is not set; export it, or write the value")
        return os.environ[name]

    def _check_tag(self, node: Any, expected: str) -> None:
        if node.tag != expected:
            raise self._error(node, f"the tag {shown(node.tag)} is not supported. Write the value without a tag")

    def _error(self, node: Any, problem: str) -> ConfigurationError:
        return ConfigurationError(f"{self._name}:{node.start_mark.line + 1}: {problem}.")


def plain(text: str) -> Any:
    """Convert an unquoted text to a value by the core schema of YAML 1.2."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if len(text) > _MOST_DIGITS:
        return text
    if _INTEGER.fullmatch(text):
        return int(text)
    if _OCTAL.fullmatch(text):
        return int(text[2:], 8)
    if _HEXADECIMAL.fullmatch(text):
        return int(text[2:], 16)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _INFINITE.fullmatch(text):
        return float(text.replace(".", "", 1))
    return text
