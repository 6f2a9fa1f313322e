"""Rules of dataclasses: beside each field stands the rule for its values, in the field's metadata.

:func:`check` holds an instance to the rules of its fields; :func:`from_dict` and :func:`read` make an instance of a
dict; :func:`to_dict` is the way back. A field whose default is None may be None.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from container.contract.errors import ConfigurationError
from container.contract.names import shown, unknown

#: Takes the name of the place in messages, and a value; returns the field's value, or raises a ConfigurationError.
Rule = Callable[[str, Any], Any]

#: Items of a list of an argument.
MAX_ITEMS = 100_000
#: Linux's limits in bytes: of a process's argument, of a path, of a name between its slashes.
_MAX_TEXT = 1 << 17
_MAX_PATH = 4096
_MAX_PART = 255
#: A number with at most this many digits is repeated in an error's remedy.
_MAX_NUMBER = 25
_WEEK = 7 * 86_400
_MAX_MONEY = 1e9


class UnknownOptionError(ConfigurationError):
    """Raised if there is no option of that name."""


def option(rule: Rule, default: Any = None, **more: Any) -> Any:
    """Return a dataclass field that has a rule.

    Args:
        rule: The rule.
        default: The default value.
        more: More arguments of ``dataclasses.field``, such as ``default_factory`` instead of the default.
    """
    if "default_factory" not in more:
        more["default"] = default
    return dataclasses.field(metadata={"rule": rule}, **more)


def check(made: Any, where: str = "{kind}({name}=…)") -> None:
    """Hold the fields of a dataclass's instance to their rules; each gets the value that its rule returns.

    Args:
        made: The instance, also a frozen one; its ``__post_init__`` calls this.
        where: The name of a field in messages.

    Raises:
        ConfigurationError: a value breaks the rule of its field.
    """
    for field in dataclasses.fields(made):
        value = getattr(made, field.name)
        if "rule" in field.metadata and not (value is None and field.default is None):
            place = where.format(kind=type(made).__name__, name=field.name)
            object.__setattr__(made, field.name, field.metadata["rule"](place, value))


def from_dict(kind: type, values: Any, what: str = "") -> Any:
    """Return an instance of a dataclass that checks itself.

    Args:
        kind: The dataclass.
        values: The values by field, as :func:`to_dict` returns them.
        what: What messages call a field; default: an option of the class.

    Raises:
        ConfigurationError: the values are not a dict, a name is unknown, or a value breaks its rule.
    """
    if not isinstance(values, Mapping):
        raise ConfigurationError(f"{kind.__name__}: expected a JSON object, got {shown(values)}.")
    known = [field.name for field in dataclasses.fields(kind) if field.init]
    for name in values:
        if name not in known:
            raise UnknownOptionError(unknown(what or f"option of {kind.__name__}", name, known))
    return kind(**values)


def to_dict(made: Any) -> dict[str, Any]:
    """Return an instance as a JSON-serialisable dict, which :func:`from_dict` reads back equal."""
    return dataclasses.asdict(
        made,
        dict_factory=lambda items: {
            name: value.value if isinstance(value, enum.Enum) else value for name, value in items
        },
    )


def read(kind: type, given: Mapping[str, Any], *, what: str = "backend option", known: Sequence[str] = ()) -> Any:
    """Return an instance of a dataclass of backend options; an option keeps its default where it is None.

    Args:
        kind: The dataclass.
        given: The options, by name.
        what: The word for such options in the message about an unknown one.
        known: Further names, which the caller handles.

    Raises:
        ConfigurationError: an option is unknown, or a value is invalid.
    """
    rules = {field.name: field.metadata["rule"] for field in dataclasses.fields(kind) if "rule" in field.metadata}
    for name in given:
        if name not in rules and name not in known:
            raise UnknownOptionError(unknown(what, name, sorted([*rules, *known])))
    return kind(
        **{
            name: rules[name](f"backend_options: {name!r}", value)
            for name, value in given.items()
            if name in rules and value is not None
        }
    )


def refuse(where: str, must_be: str, value: Any, remedy: str = "") -> ConfigurationError:
    """Return the error for an invalid value."""
    return ConfigurationError(f"{where} must be {must_be}, got {shown(value)}.{remedy and f' {remedy}.'}")


def passable(where: str, value: str, most: int = _MAX_TEXT) -> str:
    """Return a text that can be passed to a process, as an argument or in the environment.

    Args:
        where: The name of the place in messages.
        value: The text.
        most: The most bytes.

    Raises:
        ConfigurationError: the text has a NUL character, is not valid Unicode, or is too long.
    """
    if "\0" in value:
        raise ConfigurationError(f"{where}: a NUL character cannot be passed to a process; got {shown(value)}.")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise ConfigurationError(f"{where}: {shown(value)} is not valid Unicode text.") from None
    if size > most:
        raise ConfigurationError(f"{where}: the value has {size:,} bytes; at most {most:,} are possible.")
    return value


# --- texts ---


def text(form: str | None = None, what: str = "") -> Rule:
    """Return the rule for a string that is not empty.

    Args:
        form: The regular expression that must match the whole string; None: any string.
        what: The end of the message "<value> is …", for example "not the name of a subnet".
    """

    def rule(where: str, value: Any) -> str:
        if form is not None and not (isinstance(value, str) and re.fullmatch(form, value)):
            raise ConfigurationError(f"{where}: {shown(value)} is {what}.")
        given = string(where, value)
        if not given:
            raise refuse(where, "a string that is not empty", value)
        return given

    return rule


def string(where: str, value: Any) -> str:
    """Return a text, which may be empty."""
    if not isinstance(value, str):
        raise refuse(where, "a string", value)
    return passable(where, value)


def path(where: str, value: Any) -> str:
    """Return a path or a URI as a text."""
    value = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(value, str) or not value:
        raise refuse(where, "a string", value)
    passable(where, value, _MAX_PATH)
    if "://" not in value and (longest := max(map(len, value.split("/")))) > _MAX_PART:
        raise ConfigurationError(
            f"{where}: a name in the path has {longest:,} characters; at most {_MAX_PART} are possible between slashes."
        )
    return value


#: The rule for the interpreter on hosts that are other machines.
interpreter = text(r"/.*", "not the absolute path of an interpreter on the hosts")


def one_of(*allowed: str) -> Rule:
    """Return the rule for one of several strings."""

    def rule(where: str, value: Any) -> str:
        if value not in allowed:
            raise ConfigurationError(unknown(where, value, allowed))
        return str(value)

    return rule


def member(kind: type[enum.Enum]) -> Rule:
    """Return the rule for a member of an enum, which its value also names."""

    def rule(where: str, value: Any) -> enum.Enum:
        for each in kind:
            if value in (each, each.value):
                return each
        raise ConfigurationError(unknown(where, value, [each.value for each in kind]))

    return rule


def items_of(where: str, value: Any, such_as: str = "") -> list[Any]:
    """Return the items of a list; any iterable but a text or a dict is one.

    Args:
        where: The name of the place in messages.
        value: The value.
        such_as: A list that is possible, as it is written.

    Raises:
        ConfigurationError: the value is not a list, or has more than :data:`MAX_ITEMS` items.
    """
    if isinstance(value, str | bytes | bytearray | memoryview | Mapping) or not isinstance(value, Iterable):
        raise refuse(where, f"a list such as {such_as}" if such_as else "a list", value)
    items = list(itertools.islice(value, MAX_ITEMS + 1))
    if len(items) > MAX_ITEMS:
        raise ConfigurationError(f"{where} has too many items; at most {MAX_ITEMS:,} are allowed.")
    return items


def texts(item: Rule | None = None, *, one_too: bool = True, such_as: str = "") -> Rule:
    """Return the rule for a list of texts, each once.

    Args:
        item: The rule for each of them.
        one_too: Whether a single text stands for a list of it.
        such_as: An example, for the refusal.
    """

    def rule(where: str, value: Any) -> tuple[str, ...]:
        items = [value] if one_too and isinstance(value, str) else value
        if not isinstance(items, list | tuple) or not all(isinstance(each, str) and each for each in items):
            raise refuse(where, f"a list of strings{such_as}", value)
        return tuple(dict.fromkeys(item(where, each) if item is not None else each for each in items))

    return rule


def words(such_as: str = "", *, item: Rule = passable, empty: bool = False, paths: bool = False) -> Rule:
    """Return the rule for a list of texts or of paths, in their order. A text alone is not a list.

    Args:
        such_as: An example, for the refusal.
        item: The rule for each of them.
        empty: Whether one may be empty.
        paths: Whether the items are paths, which need not be texts.
    """
    accepted = (str, os.PathLike) if paths else str

    def rule(where: str, value: Any) -> tuple[str, ...]:
        if isinstance(value, str | os.PathLike):
            raise refuse(where, "a list", value, f"Write [{shown(value)}]")
        found = []
        for each in items_of(where, value, such_as):
            if not isinstance(each, accepted) or not (each or empty):
                raise ConfigurationError(f"{where} must be a list of strings, got {shown(each)} in it{write(each)}.")
            found.append(path(where, each) if paths else item(where, each))
        return tuple(found)

    return rule


def write(value: Any) -> str:
    """Return the remedy for a number where a text is expected; empty for other values."""
    is_number = isinstance(value, float) or (isinstance(value, int) and abs(value) < 10**_MAX_NUMBER)
    return f". Write {str(value)!r}" if is_number else ""


# --- other values ---


def boolean(where: str, value: Any) -> bool:
    """Return True or False."""
    if not isinstance(value, bool):
        raise refuse(where, "True or False", value)
    return value


def or_none(rule: Rule) -> Rule:
    """Return the rule for a value that may be None, for fields with another default."""
    return lambda where, value: None if value is None else rule(where, value)


def nested(kind: type) -> Rule:
    """Return the rule for an instance of a dataclass, or a dict of its fields."""

    def rule(where: str, value: Any) -> Any:
        if isinstance(value, kind):
            return value
        if not isinstance(value, Mapping):
            raise refuse(where, f"a {kind.__name__}(…)", value)
        return from_dict(kind, value)

    return rule


# --- numbers ---


def _is_number(value: Any, least: float, most: float | None) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return value >= least and (value <= most if most is not None else value < math.inf)


def _digits(value: float) -> str:
    return f"{int(value):,}" if value == int(value) else f"{value:g}"


def _range(least: float, most: float | None) -> str:
    return f"of at least {_digits(least)}" if most is None else f"from {_digits(least)} to {_digits(most)}"


def number(least: float = 0, most: float | None = None, what: str = "a number") -> Rule:
    """Return the rule for a number with a range."""

    def rule(where: str, value: Any) -> float:
        if not _is_number(value, least, most):
            raise refuse(where, f"{what} {_range(least, most)}", value)
        return value  # type: ignore[no-any-return]

    return rule


def whole(least: int, most: int | None = None) -> Rule:
    """Return the rule for a whole number with a range."""

    def rule(where: str, value: Any) -> int:
        if not _is_number(value, least, most) or not isinstance(value, int):
            is_whole = isinstance(value, float) and _is_number(value, least, most) and value.is_integer()
            raise refuse(
                where, f"a whole number {_range(least, most)}", value, f"Write {int(value)}" if is_whole else ""
            )
        return value

    return rule


def seconds(least: float = 0, most: float = _WEEK) -> Rule:
    """Return the rule for a number of seconds, which is returned as a float."""
    accept = number(least, most, "a number of seconds")
    return lambda where, value: float(accept(where, value))


def money(where: str, value: Any) -> float:
    """Return an amount in US dollars."""
    if not _is_number(value, 0, _MAX_MONEY) or value in (0, _MAX_MONEY):
        raise refuse(where, f"an amount in US dollars above 0 and below {_digits(_MAX_MONEY)}", value)
    return float(value)


def above_0(what: str, most: float | None = None) -> Rule:
    """Return the rule for a number above 0, which is returned as a float.

    Args:
        what: What the number must be, for the refusal.
        most: The largest number. None for no limit.
    """

    def rule(where: str, value: Any) -> float:
        if not _is_number(value, 0, most) or value == 0:
            raise refuse(where, what, value)
        try:
            return float(value)
        except OverflowError:
            raise refuse(where, what, value) from None

    return rule


def between_0_and_1(where: str, value: Any) -> float:
    """Return a number between 0 and 1, both excluded."""
    if not _is_number(value, 0, 1) or value in (0, 1):
        raise refuse(where, "between 0 and 1", value)
    return value  # type: ignore[no-any-return]


def pair(what: str, item: Rule) -> Rule:
    """Return the rule for two values, the second of which is not less than the first.

    Args:
        what: What they are: "(shortest, longest) in seconds".
        item: The rule for each of them.
    """

    def rule(where: str, value: Any) -> tuple[Any, Any]:
        if not isinstance(value, list | tuple) or len(value) != 2:
            raise refuse(where, what, value)
        first, second = (item(where, each) for each in value)
        if first > second:
            raise ConfigurationError(f"{where}: the first, {shown(first)}, is above the second, {shown(second)}.")
        return first, second

    return rule
