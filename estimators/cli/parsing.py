"""Parse values of the command line: ``name=value`` pairs, durations, numbers, and the script's own arguments."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from container.contract.hyperparameters import decode_value, is_reserved, option_of, to_cmd_args
from container.contract.names import shown
from estimators.job.errors import ConfigurationError
from estimators.results import tables

_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s?)?")
#: Maximum number of digits of a number on the command line.
_MOST_DIGITS = 18
#: Matches the beginning of an indented line that explains a name, such as an exit status: the name and the following
#: spaces.
_EXPLAINED = re.compile(r" +\S+(?: \S+)* {2,}(?=\S)")
#: Matches the line break between two lines of a paragraph.
_BREAK = re.compile(r"(?<=[^\n:])\n(?=[^\s])")
_NUMBER = re.compile(r"-(\d|\.\d)")


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """A formatter that wraps the sentences of descriptions between words. Examples are not wrapped."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        joined = _BREAK.sub(" ", text)  # the lines of a paragraph are wrapped together
        return "\n".join(
            indent + line for part in joined.splitlines() for line in self._filled(part, width - len(indent))
        )

    def _filled(self, line: str, width: int) -> list[str]:
        explained = _EXPLAINED.match(line)
        if len(line) <= width or (line[:1] == " " and explained is None and line[: width // 2].strip()):
            return [line]
        if explained is None:
            indented = line[:1] == " "
            return (
                tables.paragraphs([line.strip()], width, "    ") if indented else tables.prose(line, width).split("\n")
            )
        column = explained.end()
        if column > width // 2:  # put the explanation below the command
            return [explained[0].rstrip(), *tables.paragraphs([line[column:]], width, indent="    ")]
        first, *more = tables.paragraphs([line[column:]], width - column)
        return [explained[0] + first, *(" " * column + text.lstrip() for text in more)]


def duration(text: str) -> int:
    """Parse a duration such as ``90``, ``90s``, ``15m``, ``1h30m`` or ``2d``, and return the number of seconds.

    This function is meant for argparse's ``type``.

    Raises:
        argparse.ArgumentTypeError: the text is not a duration, or the duration is shorter than one second.
    """
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None or not any(match.groups()) or len(text) > 4 * _MOST_DIGITS:
        raise argparse.ArgumentTypeError(f"{shown(text)} is not a duration: write seconds, or 15m, 1h30m, 2d.")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if total < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is too short: the shortest duration is one second.")
    return total


def count(text: str) -> int:
    """Parse a whole number of at least 1. This function is meant for argparse's ``type``.

    Raises:
        argparse.ArgumentTypeError: the text is not such a number.
    """
    return _from(text, 1)


def whole(text: str) -> int:
    """Parse a whole number of at least 0. This function is meant for argparse's ``type``.

    Raises:
        argparse.ArgumentTypeError: the text is not such a number.
    """
    return _from(text, 0)


def amount(text: str) -> float:
    """Parse a number of at least 0. This function is meant for argparse's ``type``.

    Raises:
        argparse.ArgumentTypeError: the text is not such a number.
    """
    with contextlib.suppress(ValueError):
        if 0 <= (number := float(text)) < math.inf:
            return number
    raise argparse.ArgumentTypeError(f"must be a number of at least 0, got {shown(text)}.")


def integer(text: str) -> int:
    """Parse a whole number, which may be negative. This function is meant for argparse's ``type``.

    Raises:
        argparse.ArgumentTypeError: the text is not such a number.
    """
    if re.fullmatch(r"-?[0-9]{1,18}", text) is None:
        raise argparse.ArgumentTypeError(f"must be a whole number, got {shown(text)}.")
    return int(text)


def _from(text: str, least: int) -> int:
    if len(text) > _MOST_DIGITS and text.isdigit():
        raise argparse.ArgumentTypeError(f"the number has {len(text):,} digits; at most {_MOST_DIGITS} are possible.")
    if not text.isascii() or not text.isdigit() or int(text) < least:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least {least}, got {shown(text)}.")
    return int(text)


def port(text: str) -> int:
    """Parse a port number. The number 0 means a free port. This function is meant for argparse's ``type``.

    Raises:
        argparse.ArgumentTypeError: the text is not a port number.
    """
    number = whole(text)
    if number > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: write a number from 0 to 65535.")
    return number


def pairs(option: str, texts: Iterable[str], form: str = "NAME=VALUE") -> dict[str, str]:
    """Parse ``NAME=VALUE`` texts. For example, ``["a=1", "b=x=y"]`` becomes ``{"a": "1", "b": "x=y"}``.

    Args:
        option: The option's name, for errors.
        texts: The option's values.
        form: The form of a value, as shown in the option's help.

    Raises:
        ConfigurationError: a text has no name or no ``=``, or two texts have the same name.
    """
    values: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise ConfigurationError(f"{option} {text!r}: write it as {form}.")
        _add(values, option, name.strip(), value)
    return values


def hyperparameters(texts: Iterable[str], passed: Sequence[str] = ()) -> dict[str, Any]:
    """Return the hyperparameters from ``--hyperparameters`` and from the script's arguments after ``--``.

    Each text is ``name=value``, a JSON object, or ``@file`` with the path of a file that contains a JSON object. The
    script receives the value in ``name=value`` exactly as the user has typed the value. The values of a JSON object
    keep their types.

    Args:
        texts: The values of ``--hyperparameters``.
        passed: The arguments after ``--``.

    Raises:
        ConfigurationError: a text cannot be parsed, a file cannot be read, or a name is given twice.
    """
    values: dict[str, Any] = {}
    option = "--hyperparameters"
    for text in texts:
        if text.startswith("@") or text.lstrip().startswith("{"):
            for name, value in _json_object(option, text).items():
                _add(values, option, name, value)
        else:
            for name, typed in pairs(option, [text]).items():
                _add(values, option, name, typed_value(typed))
    for name, typed in pairs_among(passed).items():
        _add(values, "--", name, typed_value(typed))
    return values


def pairs_among(arguments: Sequence[str]) -> dict[str, str]:
    """Return the script's arguments that are also hyperparameters. These are the options with exactly one value.

    For example, ``["--lr", "0.1", "--epochs=3", "--fp16", "--layers", "64", "32"]`` becomes ``{"lr": "0.1", "epochs":
    "3"}``. Flags, options with several values, options that are given twice, and arguments after a second ``--`` are
    not returned.
    """
    words = list(itertools.takewhile(lambda word: word != "--", arguments))
    found: dict[str, list[list[str]]] = {}
    values: list[str] = []
    for word in words:
        if word.startswith("-") and word.strip("-") and not _NUMBER.match(word):
            name, equals, value = word.partition("=")
            values = [value] if equals else []
            found.setdefault(name, []).append(values)
        else:
            values.append(word)
    return {
        name.lstrip("-"): given[0][0]
        for name, given in found.items()
        if len(given) == 1 and len(given[0]) == 1 and name == option_of(name.lstrip("-"))
        if not is_reserved(name.lstrip("-"))
    }


def are_pairs(arguments: Sequence[str]) -> bool:
    """Return whether every argument of a script belongs to a hyperparameter, as the arguments ``--epochs 4`` do."""
    found = pairs_among(arguments)
    return len(arguments) == sum(1 if f"{option_of(name)}={value}" in arguments else 2 for name, value in found.items())


def typed_value(text: str) -> Any:
    """Return the value that a text represents, such as a number.

    The text is returned unchanged if a script would receive the value as another text. For example, ``1e3`` remains a
    text, because a script would receive the number as ``1000.0``.
    """
    value = decode_value(text)
    if isinstance(value, str | dict) or value is None or to_cmd_args({"x": value})[1] != text:
        return text
    return value


def inputs(texts: Sequence[str]) -> dict[str, str] | None:
    """Convert the values of ``--input`` to channels. A path without a name is the channel ``training``.

    Return None if no value is given.

    Raises:
        ConfigurationError: a channel is given twice.
    """
    channels: dict[str, str] = {}
    for text in texts:
        name, equals, path = text.partition("=")
        # A path may contain "=". A channel's name never contains a slash.
        if not equals or "/" in name or os.path.exists(text):
            name, path = "training", text
        _add(channels, "--input", name, path)
    return channels or None


def check_file(option: str, path: str | None) -> None:
    """Check that a file can be written. With None, do nothing.

    Commands call this function before the work whose result is written to the file.

    Raises:
        ConfigurationError: the file cannot be written.
    """
    if path is None:
        return
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise ConfigurationError(f"{option} {path}: there is no folder {folder}.")
    if os.path.isdir(path):
        raise ConfigurationError(f"{option} {path}: this is a folder. Name a file in it.")
    if not os.access(path if os.path.exists(path) else folder, os.W_OK):
        raise ConfigurationError(f"{option} {path}: the file cannot be written: permission denied.")


def _json_object(option: str, text: str) -> dict[str, Any]:
    source = text
    if text.startswith("@"):
        try:
            source = Path(text[1:]).read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"{option} {text}: the file cannot be read: {error}.") from error
    try:
        value = json.loads(source)
    except ValueError as error:
        raise ConfigurationError(f"{option} {text}: not valid JSON: {error}.") from error
    if not isinstance(value, dict):
        raise ConfigurationError(f'{option} {text}: expected a JSON object such as {{"epochs": 4}}, got {value!r}.')
    return value


def _add(values: dict[str, Any], option: str, name: str, value: Any) -> None:
    if name in values:
        raise ConfigurationError(f"{option} {name!r} is given twice: {values[name]!r} and {value!r}.")
    values[name] = value


def repeated(parser: argparse._ActionsContainer, *words: str) -> None:
    """Add an option that may be repeated. The option's values are collected in a list.

    Args:
        parser: The parser to which the option is added.
        words: The names of the option, then the metavar, and then the help text.
    """
    *flags, metavar, text = words
    parser.add_argument(*flags, metavar=metavar, action="append", default=[], help=f"{text}; may be repeated")


def add_logs(parser: argparse._ActionsContainer) -> None:
    """Add the options that select the log lines to show while the command waits."""
    parser.add_argument("--no-logs", action="store_true", help="wait without showing the logs")
    add_all(parser)


def add_all(parser: argparse._ActionsContainer) -> None:
    """Add the option ``--all``, which shows every log line."""
    parser.add_argument(
        "--all", action="store_true",
        help="also show TensorFlow's start-up lines, and lines that another rank has already printed",
    )  # fmt: skip


def add_dispatcher(parser: argparse._ActionsContainer, what: str) -> None:
    """Add the options that select a dispatcher.

    Args:
        parser: The parser.
        what: The help text of ``--dispatcher``.
    """
    parser.add_argument("--dispatcher", metavar="[USER@]HOST|ray", help=what)
    repeated(
        parser, "--dispatcher-option", "NAME=VALUE", "option of the dispatcher, such as python=/opt/train/bin/python",
    )  # fmt: skip


def dispatcher_options(args: argparse.Namespace) -> dict[str, str]:
    """Return the values of ``--dispatcher-option``.

    Raises:
        ConfigurationError: options are given without a dispatcher.
    """
    given = dict(pairs("--dispatcher-option", args.dispatcher_option))
    if given and args.dispatcher is None:
        raise ConfigurationError("--dispatcher-option needs a --dispatcher.")
    return given


def logs(args: argparse.Namespace) -> bool:
    """Return whether to show the logs. Whether to show every line is in ``args.all``.

    Raises:
        ConfigurationError: ``--all`` and ``--no-logs`` are combined.
    """
    if args.all and args.no_logs:
        raise ConfigurationError("--all and --no-logs exclude each other.")
    return not args.no_logs
