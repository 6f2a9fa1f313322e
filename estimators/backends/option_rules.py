"""``RunOptions(backend_options={…})`` as a dataclass: beside each field stands what it takes."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from container.contract.names import shown, unknown
from estimators.job.errors import ConfigurationError

#: Takes how the option is called in messages, and a value; returns what the field is, or raises a ConfigurationError.
Rule = Callable[[str, Any], Any]

_WEEK = 7 * 86_400


class UnknownOptionError(ConfigurationError):
    """There is no option of that name."""


def option(rule: Rule, default: Any = None) -> Any:
    """Return a dataclass's field that is an option; it keeps its default where it is None or not given."""
    return dataclasses.field(default=default, metadata={"rule": rule})


def read(kind: type, given: Mapping[str, Any], *, what: str = "backend option", known: Sequence[str] = ()) -> Any:
    """Return an instance of a dataclass of options.

    Args:
        kind: The dataclass.
        given: The options, by name.
        what: What they are called where one is not known.
        known: Other names that the caller has taken care of.

    Raises:
        ConfigurationError: an unknown option, or a value that makes no sense.
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


def refuse(where: str, must_be: str, value: Any) -> ConfigurationError:
    """Return the refusal of a value."""
    return ConfigurationError(f"{where} must be {must_be}, got {shown(value)}.")


def text(form: str | None = None, what: str = "") -> Rule:
    """Return the rule for a text.

    Args:
        form: The regular expression that it matches as a whole; None: any that is not empty.
        what: What it is not where it does not: "subnet such as 'subnet-1'".
    """

    def rule(where: str, value: Any) -> str:
        if not isinstance(value, str) or not value:
            raise refuse(where, "a string", value)
        if form is not None and re.fullmatch(form, value) is None:
            raise ConfigurationError(f"{where}: {shown(value)} is {what}.")
        return value

    return rule


#: The interpreter on hosts that are other machines.
interpreter = text(r"/.*", "not the absolute path of an interpreter on the hosts")


def one_of(*allowed: str) -> Rule:
    """Return the rule for one of some texts."""

    def rule(where: str, value: Any) -> str:
        if value not in allowed:
            raise ConfigurationError(unknown(where, value, allowed))
        return str(value)

    return rule


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


def boolean(where: str, value: Any) -> bool:
    """The rule for True and False."""
    if not isinstance(value, bool):
        raise refuse(where, "True or False", value)
    return value


def whole(least: int, most: int) -> Rule:
    """Return the rule for a whole number."""

    def rule(where: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise refuse(where, f"a whole number from {least} to {most:,}", value)
        return value

    return rule


def money(where: str, value: Any) -> float:
    """The rule for an amount in US dollars."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise refuse(where, "a number", value)
    if not 0 < value < 1e9:
        raise refuse(where, "an amount in US dollars above 0", value)
    return float(value)


def above_0(what: str) -> Rule:
    """Return the rule for a number above 0, of what it is called."""

    def rule(where: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise refuse(where, what, value)
        return float(value)

    return rule


def seconds(least: float, most: float = _WEEK) -> Rule:
    """Return the rule for a number of seconds."""

    def rule(where: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            end = f"{most:,.0f}" if most >= 10_000 else f"{most:g}"
            raise refuse(where, f"a number of seconds from {least:g} to {end}", value)
        return float(value)

    return rule
