"""Finds the number that a regular expression's group was meant to match, if it matched only a part of it or more.

For example, ``loss: ([0-9.]+)`` matches ``7.5`` in ``loss: 7.5e-05``, and ``0.95.`` at the end of a sentence.
"""

from __future__ import annotations

import dataclasses
import re

#: #: How much of a line is kept on both sides of a group, in characters.
BESIDE_LIMIT = 32
#: #: A group that matches a number completely.
GROUP = r"([-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?)"

_NUMBER = re.compile(r"[-+]?(?:(?:\d{1,3}(?:,\d{3})+(?!,?\d)|\d+)(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?")
#: #: Characters that may follow a number within the matched text.
_CLOSING = re.compile(r"[\s.,;:!?%'\")\]}]*")
#: #: The part of a number before a group: its digits, or a sign that does not join words.
_BEGUN = re.compile(r"[-+\u2212]?[\d,]*\d\.?\d*\Z|(?<![\w.)\]])[-+\u2212]\Z")
#: #: A regex that itself matches a digit, a point or a sign before its group does so on purpose.
_MEANT = re.compile(r"(?:\d|-|\\[d.+]|\[[^\]]*[-+\d.][^\]]*\])[?*+]?\((?!\?[:=!<])")


@dataclasses.dataclass(frozen=True, slots=True)
class Caught:
    """The text that the first group of a regular expression matched in a line.

    Attributes:
        text: The matched text.
        before: The text before it in the line, at most :data:`BESIDE_LIMIT` characters.
        after: The text after it, at most as many characters; empty if the expression matches more than the group, so
            that the number ends with the group.
    """

    text: str
    before: str = ""
    after: str = ""


def number_of(caught: Caught) -> float | None:
    """Return the matched number, including digits that follow the matched text in the line.

    Commas separate thousands. The result is None if the text is not a number.
    """
    text = caught.text.strip().strip("'\"")
    token = _NUMBER.match(text)
    if token is None:
        return _float(text)
    if token.end() < len(text):  # more than a number, perhaps with the end of a sentence
        return _float(token[0]) if _CLOSING.fullmatch(text, token.end()) else _float(text)
    whole = _NUMBER.match(text + caught.after)
    goes_on = re.match(r"\.\d", (text + caught.after)[whole.end() :]) if whole is not None else None
    return _float(text if whole is None or goes_on else whole[0])


def cut_number(caught: Caught, regex: str) -> str | None:
    """Return the whole number if a group matched only its end, such as ``3`` of ``-0.3``; else None."""
    if _MEANT.search(regex) or not re.match(r"[\d.]", caught.text):
        return None
    begun = _BEGUN.search(caught.before)
    return f"{begun[0]}{caught.text}" if begun is not None else None


def _float(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None
