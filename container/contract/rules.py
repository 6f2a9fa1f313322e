"""Validate the fields of dataclasses. A field's metadata contains a rule: a function that checks the field's value.

:func:`check` applies the rules to the fields of an instance. :func:`from_dict` and :func:`read` create an instance
from a dict. :func:`to_dict` converts an instance to a dict. A field whose default is None may be None.
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

from container.contract.errors import ArgumentNameError, ConfigurationError
from container.contract.names import is_text, shown, unknown

#: A rule is a function. Its arguments are the option's name, which error messages show, and the value to check. It
#: returns the value that the field gets, or raises ConfigurationError.
Rule = Callable[[str, Any], Any]

#: The maximum number of items in a list.
MAX_ITEMS = 100_000
#: Linux's limits in bytes, for an argument of a process, for a path, and for a name between the path's slashes.
_MAX_TEXT = 1 << 17
_MAX_PATH = 4096
_MAX_PART = 255
#: The maximum number of digits of a number that :func:`write` repeats in an error message.
_MAX_NUMBER = 25
#: The end of the description of valid values if None is valid, too.
_OR_NONE = ", or None"
_WEEK = 7 * 86_400
_MAX_MONEY = 1e9


class InvalidValueError(ConfigurationError):
    """Raised if the value of an option is invalid.

    Attributes:
        value: The invalid value, which can be an item of the option's value.
        must_be: A description of valid values.
        remedy: What the user can do, as a sentence without a full stop. Empty for no remedy.
    """

    def __init__(self, where: str, must_be: str, value: Any, remedy: str = "") -> None:
        super().__init__(f"{where} must be {must_be}, got {shown(value)}.{remedy and f' {remedy}.'}")
        self.value, self.must_be, self.remedy = value, must_be, remedy


def option(rule: Rule, default: Any = None, **more: Any) -> Any:
    """Return a dataclass field that has a rule.

    Args:
        rule: The rule.
        default: The default value. ``dataclasses.MISSING`` for a field without a default.
        more: More arguments of ``dataclasses.field``. If ``default_factory`` is given, ``default`` is ignored.
    """
    if "default_factory" not in more:
        more["default"] = default
    return dataclasses.field(metadata={"rule": rule}, **more)


def text_of(made: Any) -> str:
    """Return an instance of a dataclass as text. The text contains only the values that differ from the defaults."""
    shown = []
    for field in dataclasses.fields(made):
        unset = field.default
        if field.default_factory is not dataclasses.MISSING:
            unset = field.default_factory()
        if (value := getattr(made, field.name)) != unset and field.init:
            shown.append(f"{field.name}={value!r}")
    return f"{type(made).__name__}({', '.join(shown)})"


def check(made: Any, where: str = "{kind}({name}=…)") -> None:
    """Apply the rules of a dataclass to an instance's fields. Set each field to the value that the field's rule
    returns.

    Args:
        made: The instance, which may be frozen. The instance's ``__post_init__`` calls this function.
        where: The format of a field's name in error messages. The format can contain ``{kind}``, the name of the class,
            and ``{name}``, the name of the field.

    Raises:
        ConfigurationError: a value violates the rule of its field.
    """
    for field in dataclasses.fields(made):
        if "rule" in field.metadata:
            rule = or_none(field.metadata["rule"]) if field.default is None else field.metadata["rule"]
            place = where.format(kind=type(made).__name__, name=field.name)
            object.__setattr__(made, field.name, rule(place, getattr(made, field.name)))


def from_dict(kind: type, values: Any, what: str = "") -> Any:
    """Create an instance of a dataclass from a dict. The dataclass's ``__post_init__`` checks the values.

    Args:
        kind: The dataclass.
        values: The values by field, as :func:`to_dict` returns them.
        what: The term for a field in error messages, such as "run option". A location and a colon may precede the term,
            as in "channel 'a': key". The default is "option of KIND", in which KIND is the name of the class.

    Raises:
        ConfigurationError: the values are not a dict, a name is unknown, or a value breaks its rule.
    """
    if not isinstance(values, Mapping):
        raise ConfigurationError(f"{kind.__name__}: expected a JSON object, got {shown(values)}.")
    known = [field.name for field in dataclasses.fields(kind) if field.init]
    for name in values:
        if name not in known:
            raise ArgumentNameError(_unknown(what or f"option of {kind.__name__}", name, known))
    return kind(**values)


def to_dict(made: Any) -> dict[str, Any]:
    """Return an instance as a JSON-serialisable dict. :func:`from_dict` converts the dict to an equal instance."""
    return dataclasses.asdict(
        made,
        dict_factory=lambda items: {
            name: value.value if isinstance(value, enum.Enum) else value for name, value in items
        },
    )


def read(
    kind: type,
    given: Mapping[str, Any],
    *,
    what: str = "backend option",
    known: Sequence[str] = (),
    argument: str = "backend_options",
) -> Any:
    """Create an instance of a dataclass of backend options. Options that are None keep their defaults.

    Args:
        kind: The dataclass.
        given: The options, by name.
        what: The term for an option in the message about an unknown option.
        known: The names of further allowed options. They are not fields of the dataclass. The caller handles them.
        argument: The argument of RunOptions that contains the options, for messages about values.

    Raises:
        ConfigurationError: an option is unknown, or a value is invalid.
    """
    rules = {field.name: field.metadata["rule"] for field in dataclasses.fields(kind) if "rule" in field.metadata}
    for name in given:
        if name not in rules and name not in known:
            raise ArgumentNameError(unknown(what, name, sorted([*rules, *known])))
    return kind(
        **{
            name: rules[name](f"{argument}: {name!r}", value)
            for name, value in given.items()
            if name in rules and value is not None
        }
    )


def refuse(where: str, must_be: str, value: Any, remedy: str = "") -> InvalidValueError:
    """Return the error for an option with an invalid value. The caller raises the error.

    Args:
        where: The name of the option, for the message.
        must_be: A description of valid values.
        value: The invalid value.
        remedy: What the user can do, as a sentence without a full stop. Empty for no remedy.
    """
    return InvalidValueError(where, must_be, value, remedy)


def _unknown(where: str, value: object, allowed: Iterable[str]) -> str:
    """Return the message about an unknown name. If ``where`` is "location: kind", the message begins with
    "location:".
    """
    place, colon, what = where.rpartition(": ")
    return f"{place}{colon}{unknown(what, value, allowed)}"


def passable(where: str, value: str, most: int | None = _MAX_TEXT) -> str:
    """Check that a text can be passed to a process as an argument or in the environment, and return the text.

    Args:
        where: The name of the option in error messages.
        value: The text.
        most: The maximum size in bytes. None for no limit, for a caller that checks the size itself.

    Raises:
        ConfigurationError: the text has a NUL character, is not valid Unicode, or is too long.
    """
    if "\0" in value:
        raise ConfigurationError(f"{where}: a NUL character cannot be passed to a process; got {shown(value)}.")
    if not is_text(value):
        raise ConfigurationError(f"{where}: {shown(value)} is not valid Unicode text.")
    if most is not None and (size := len(value.encode())) > most:
        raise ConfigurationError(f"{where}: the value has {size:,} bytes; at most {most:,} are possible.")
    return value


# --- texts ---


def text(form: str | None = None, what: str = "") -> Rule:
    """Return a rule that accepts strings that are not empty.

    Args:
        form: The regular expression that must match the whole string. None to accept any string.
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
    """Return the value of an option that must be a string. The string may be empty."""
    if not isinstance(value, str):
        raise refuse(where, "a string", value)
    return passable(where, value)


def path(where: str, value: Any) -> str:
    """Return the value of an option that must be a path or a URI. Path objects are converted to strings."""
    value = os.fspath(value) if isinstance(value, os.PathLike) else value
    if value == "":
        raise refuse(where, "a string that is not empty", value)
    if not isinstance(value, str):
        raise refuse(where, "a string", value)
    passable(where, value, _MAX_PATH)
    if "://" not in value and (longest := max(map(len, value.split("/")))) > _MAX_PART:
        raise ConfigurationError(
            f"{where}: a name in the path has {longest:,} characters; at most {_MAX_PART} are possible between slashes."
        )
    return value


#: The rule for the path of the Python interpreter on remote hosts.
interpreter = text(r"/.*", "not the absolute path of an interpreter on the hosts")


def one_of(*allowed: str) -> Rule:
    """Return a rule that accepts only the given strings."""

    def rule(where: str, value: Any) -> str:
        if value not in allowed:
            raise ConfigurationError(_unknown(where, value, allowed))
        return str(value)

    return rule


def member(kind: type[enum.Enum]) -> Rule:
    """Return a rule that accepts the members of an enum and the values of these members, and returns the member."""

    def rule(where: str, value: Any) -> enum.Enum:
        for each in kind:
            if value in (each, each.value):
                return each
        raise ConfigurationError(_unknown(where, value, [each.value for each in kind]))

    return rule


def items_of(where: str, value: Any, such_as: str = "") -> list[Any]:
    """Return the items of an option that must be a list. All iterables are accepted, except texts, bytes and dicts.

    Args:
        where: The name of the option in error messages.
        value: The value.
        such_as: An example of a valid list, for the error message.

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
    """Return a rule that accepts a list of strings. Duplicate strings are removed.

    Args:
        item: The rule for each string.
        one_too: Whether the rule also accepts a single string instead of a list.
        such_as: An example for the error message.
    """

    def rule(where: str, value: Any) -> tuple[str, ...]:
        items = [value] if one_too and isinstance(value, str) else value
        if not isinstance(items, list | tuple) or not all(isinstance(each, str) and each for each in items):
            raise refuse(where, f"a list of strings{such_as}", value)
        return tuple(dict.fromkeys(item(where, each) if item is not None else each for each in items))

    return rule


def words(such_as: str = "", *, item: Rule = passable, empty: bool = False, paths: bool = False) -> Rule:
    """Return a rule that accepts a list of program arguments or paths, in their order. A string instead of a list is
    refused.

    Args:
        such_as: An example for the error message.
        item: The rule for each item.
        empty: Whether an item may be empty.
        paths: Whether an item may be a path instead of a string.
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
    """Return a hint that shows how to write a number as a string. Return an empty string for other values."""
    is_number = isinstance(value, float) or (isinstance(value, int) and abs(value) < 10**_MAX_NUMBER)
    return f". Write {str(value)!r}" if is_number else ""


# --- other values ---


def boolean(where: str, value: Any) -> bool:
    """Return the value of an option that must be True or False.

    Raises:
        ConfigurationError: the value is neither True nor False.
    """
    if not isinstance(value, bool):
        raise refuse(where, "True or False", value)
    return value


def or_none(rule: Rule) -> Rule:
    """Return a rule that accepts None in addition to the values of another rule.

    A field whose default is None does not need this function, because :func:`check` already accepts None for the field.
    """

    def checked(where: str, value: Any) -> Any:
        if value is None:
            return None
        try:
            return rule(where, value)
        except InvalidValueError as error:
            # The error may be about an item of the value, or the rule may already accept None.
            if error.value is not value or error.must_be.endswith(_OR_NONE):
                raise
            raise refuse(where, f"{error.must_be}{_OR_NONE}", value, error.remedy) from None

    return checked


def nested(kind: type) -> Rule:
    """Return a rule that accepts an instance of a dataclass, or a dict of its fields, and returns an instance."""

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
    """Return a rule that accepts numbers from ``least`` to ``most``. ``what`` describes such a number in the error
    message.
    """

    def rule(where: str, value: Any) -> float:
        if not _is_number(value, least, most):
            raise refuse(where, f"{what} {_range(least, most)}", value)
        return value  # type: ignore[no-any-return]

    return rule


def whole(least: int, most: int | None = None, note: str = "") -> Rule:
    """Return a rule that accepts whole numbers from ``least`` to ``most``.

    Args:
        least: The minimum.
        most: The maximum. None for no maximum.
        note: An explanation of the number, which the error message shows in parentheses.
    """
    must_be = f"a whole number {_range(least, most)}{note and f' ({note})'}"

    def rule(where: str, value: Any) -> int:
        if not _is_number(value, least, most) or not isinstance(value, int):
            is_whole = isinstance(value, float) and _is_number(value, least, most) and value.is_integer()
            raise refuse(where, must_be, value, f"Write {int(value)}" if is_whole else "")
        return value

    return rule


def seconds(least: float = 0, most: float = _WEEK) -> Rule:
    """Return a rule that accepts a number of seconds. The rule does not convert an int to a float, so that messages
    show the number as the user wrote it.
    """
    return number(least, most, "a number of seconds")


def money(where: str, value: Any) -> float:
    """Return the value of an option that must be an amount in US dollars, above 0 and below 1,000,000,000.

    Raises:
        ConfigurationError: the value is not such an amount.
    """
    if not _is_number(value, 0, _MAX_MONEY) or value in (0, _MAX_MONEY):
        raise refuse(where, f"an amount in US dollars above 0 and below {_digits(_MAX_MONEY)}", value)
    return float(value)


def above_0(what: str, most: float | None = None) -> Rule:
    """Return a rule that accepts numbers above 0, and converts each number to a float.

    Args:
        what: A description of valid numbers for the error message.
        most: The maximum. None for no maximum.
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
    """Return the value of an option that must be a number above 0 and below 1."""
    if not _is_number(value, 0, 1) or value in (0, 1):
        raise refuse(where, "between 0 and 1", value)
    return value  # type: ignore[no-any-return]


def pair(what: str, item: Rule) -> Rule:
    """Return a rule that accepts two values. The second value must not be less than the first value.

    Args:
        what: A description of the pair for the error message, such as "(shortest, longest) in seconds".
        item: The rule for each value.
    """

    def rule(where: str, value: Any) -> tuple[Any, Any]:
        if not isinstance(value, list | tuple) or len(value) != 2:
            raise refuse(where, what, value)
        first, second = (item(where, each) for each in value)
        if first > second:
            raise refuse(where, what, value, f"The first, {shown(first)}, is above the second, {shown(second)}")
        return first, second

    return rule
