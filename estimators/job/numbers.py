"""Find the complete number if the group of a metric's regular expression matched only a part of the number, or too much
text.

For example, ``loss: ([0-9.]+)`` matches ``7.5`` in ``loss: 7.5e-05``, and ``0.95.`` at the end of a sentence.
"""

from __future__ import annotations

import dataclasses
import re

#: The number of characters of a line that are kept on each side of a group.
BESIDE_LIMIT = 32
#: A group that matches a number completely.
GROUP = r"([-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?)"

#: Commas separate thousands only in a number such as ``1,234.5``. ``0,5`` has a decimal comma, and ``1,2`` is a list.
_NUMBER = re.compile(r"[-+]?(?:(?:[1-9]\d{0,2}(?:,\d{3})+(?!,?\d)|\d+)(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?")
#: Characters that may follow a number within the matched text.
_CLOSING = re.compile(r"[\s.,;:!?%'\")\]}]*")
#: Matches the part of a number that precedes a group: digits, or a sign that is not a hyphen between words.
_BEGUN = re.compile(r"[-+\u2212]?[\d,]*\d\.?\d*\Z|(?<![\w.)\]])[-+\u2212]\Z")
#: Matches a regex that itself matches a digit, a point or a sign before its group. The author of such a regex has left
#: a part of the number out of the group on purpose.
_MEANT = re.compile(r"(?:\d|-|\\[d.+]|\[[^\]]*[-+\d.][^\]]*\])[?*+]?\((?!\?[:=!<])")


@dataclasses.dataclass(frozen=True, slots=True)
class Caught:
    """The text that the first group of a regular expression matched in a line.

    Attributes:
        text: The matched text.
        before: At most :data:`BESIDE_LIMIT` characters that precede ``text`` in the line.
        after: At most :data:`BESIDE_LIMIT` characters that follow ``text`` in the line. If the expression matches more
            text after the group, ``after`` is empty, because the number then ends with the group.
    """

    text: str
    before: str = ""
    after: str = ""


def number_of(caught: Caught) -> float | None:
    """Return the matched number, including digits that follow the matched text in the line.

    Commas are accepted only as thousands separators. Return None if the text is not a number.
    """
    text = caught.text.strip().strip("'\"")
    token = _NUMBER.match(text)
    if token is None:
        return _float(text)
    if token.end() < len(text):  # more than a number, perhaps with the end of a sentence
        return _grouped(token[0]) if _CLOSING.fullmatch(text, token.end()) else _float(text)
    whole = _NUMBER.match(text + caught.after)
    goes_on = re.match(r"\.\d", (text + caught.after)[whole.end() :]) if whole is not None else None
    return _grouped(text if whole is None or goes_on else whole[0])


def cut_number(caught: Caught, regex: str) -> str | None:
    """Return the whole number if a group matched only the number's end, such as ``3`` of ``-0.3``. Otherwise return
    None.
    """
    if _MEANT.search(regex) or not re.match(r"[\d.]", caught.text):
        return None
    begun = _BEGUN.search(caught.before)
    return f"{begun[0]}{caught.text}" if begun is not None else None


def _grouped(number: str) -> float:
    return float(number.replace(",", ""))


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
