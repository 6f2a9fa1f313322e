"""The number that the group of a regular expression meant, where it caught a part of it or more.

``loss: ([0-9.]+)`` catches ``7.5`` in ``loss: 7.5e-05``, and ``0.95.`` at the end of a sentence.
"""

from __future__ import annotations

import dataclasses
import re

#: What is known of a line on both sides of a group, in characters.
BESIDE_LIMIT = 32
#: A group that catches a number whole.
GROUP = r"([-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?)"

_NUMBER = re.compile(r"[-+]?(?:(?:\d{1,3}(?:,\d{3})+(?!,?\d)|\d+)(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?")
#: What may stand behind a number that was caught with it.
_CLOSING = re.compile(r"[\s.,;:!?%'\")\]}]*")
#: The part of a number in front of a group: its digits, or a sign that divides no words.
_BEGUN = re.compile(r"[-+\u2212]?[\d,]*\d\.?\d*\Z|(?<![\w.)\]])[-+\u2212]\Z")
#: A regex that itself takes a digit, a point or a sign in front of its group means it so.
_MEANT = re.compile(r"(?:\d|-|\\[d.+]|\[[^\]]*[-+\d.][^\]]*\])[?*+]?\((?!\?[:=!<])")


@dataclasses.dataclass(frozen=True, slots=True)
class Caught:
    """What the first group of a regular expression caught in a line.

    Attributes:
        text: That.
        before: What is in front of it in the line, the last :data:`BESIDE_LIMIT` characters.
        after: What is behind it, so many characters; empty where the expression matched on: it ends the number there.
    """

    text: str
    before: str = ""
    after: str = ""


def number_of(caught: Caught) -> float | None:
    """Return the number that was caught; all of it, where the line goes on with it behind what matched.

    A comma parts thousands. None if it is no number.
    """
    text = caught.text.strip().strip("'\"")
    token = _NUMBER.match(text)
    if token is None:
        return _float(text)
    if token.end() < len(text):  # more than a number, which may be its end
        return _float(token[0]) if _CLOSING.fullmatch(text, token.end()) else _float(text)
    whole = _NUMBER.match(text + caught.after)
    goes_on = re.match(r"\.\d", (text + caught.after)[whole.end() :]) if whole is not None else None
    return _float(text if whole is None or goes_on else whole[0])


def cut_number(caught: Caught, regex: str) -> str | None:
    """Return the whole number of which a group caught only the end, such as ``3`` of ``-0.3``; None if it did not."""
    if _MEANT.search(regex) or not re.match(r"[\d.]", caught.text):
        return None
    begun = _BEGUN.search(caught.before)
    return f"{begun[0]}{caught.text}" if begun is not None else None


def _float(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None
