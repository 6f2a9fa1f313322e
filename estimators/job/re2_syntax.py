"""Regular expressions of Python's ``re`` in the words of RE2, whose time is bounded.

RE2 takes the same text for other things here and there (``[[:alpha:]]``, ``a{,3}``, ``\\d``). So what Python has
understood is written down anew, piece by piece, and whatever RE2 lacks or does otherwise is not translated.
"""

from __future__ import annotations

import re
import sys
from typing import Any

if sys.version_info >= (3, 11):
    from re import _constants as codes  # type: ignore[attr-defined]
    from re import _parser as parser  # type: ignore[attr-defined]
else:
    import sre_constants as codes
    import sre_parse as parser

#: RE2 takes no larger numbers of repetitions.
_MOST_REPEATS = 1000

#: Python's ``\d``, ``\s`` and ``\w`` of text, as parts of a class.
_CATEGORIES = {
    codes.CATEGORY_DIGIT: r"\p{Nd}",
    codes.CATEGORY_SPACE: r"\t-\r\x{1c}-\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}"
    r"\x{3000}",
    codes.CATEGORY_WORD: r"\p{L}\p{N}_",
}
_NEGATED = {
    codes.CATEGORY_NOT_DIGIT: codes.CATEGORY_DIGIT,
    codes.CATEGORY_NOT_SPACE: codes.CATEGORY_SPACE,
    codes.CATEGORY_NOT_WORD: codes.CATEGORY_WORD,
}
#: A line has no newline in it, so that the end is only at its end.
_PLACES = {
    codes.AT_BEGINNING: r"\A",
    codes.AT_BEGINNING_STRING: r"\A",
    codes.AT_END: r"\z",
    codes.AT_END_STRING: r"\z",
}


class _Untranslatable(Exception):
    """RE2 has nothing that means the same."""


def to_re2(pattern: str) -> str | None:
    """Return the same regular expression for RE2, for lines of text without newlines.

    Returns:
        None when there is none that is sure to mean the same: look-around, back-references, ``\\b``, flags, a
        repetition of what may be empty.
    """
    try:
        parsed = parser.parse(pattern)
        if parsed.state.flags != re.UNICODE:
            return None
        return _sequence(parsed)
    except (_Untranslatable, RecursionError):
        return None


def _sequence(parsed: Any) -> str:
    return "".join(_one(code, value) for code, value in parsed)


def _one(code: Any, value: Any) -> str:
    if code is codes.LITERAL:
        return _character(value)
    if code is codes.NOT_LITERAL:
        return f"[^{_character(value)}]"
    if code is codes.ANY:
        return "."
    if code is codes.IN:
        return _class(value)
    if code is codes.AT and value in _PLACES:
        return _PLACES[value]
    if code is codes.BRANCH:
        return f"(?:{'|'.join(_sequence(branch) for branch in value[1])})"
    if code is codes.SUBPATTERN:
        group, added, removed, inner = value
        if added or removed:
            raise _Untranslatable
        return f"({'?:' if group is None else ''}{_sequence(inner)})"
    if code in (codes.MAX_REPEAT, codes.MIN_REPEAT):
        return _repeat(*value, lazy=code is codes.MIN_REPEAT)
    raise _Untranslatable


def _repeat(least: int, most: Any, inner: Any, *, lazy: bool) -> str:
    endless = most is codes.MAXREPEAT
    if inner.getwidth()[0] == 0 or least > _MOST_REPEATS or (not endless and most > _MOST_REPEATS):
        raise _Untranslatable
    count = f"{{{least},{'' if endless else most}}}"
    return f"(?:{_sequence(inner)}){count}{'?' if lazy else ''}"


def _class(items: Any) -> str:
    parts = []
    negated = False
    for code, value in items:
        if code is codes.NEGATE:
            negated = True
        elif code is codes.LITERAL:
            parts.append(_character(value))
        elif code is codes.RANGE:
            parts.append(f"{_character(value[0])}-{_character(value[1])}")
        elif code is codes.CATEGORY and value in _CATEGORIES:
            parts.append(_CATEGORIES[value])
        elif code is codes.CATEGORY and value in _NEGATED and len(items) == 1:
            return f"[^{_CATEGORIES[_NEGATED[value]]}]"
        else:
            raise _Untranslatable
    return f"[{'^' if negated else ''}{''.join(parts)}]"


def _character(number: int) -> str:
    if 0xD800 <= number <= 0xDFFF:
        raise _Untranslatable  # no text of a line has it
    character = chr(number)
    return character if character.isascii() and character.isalnum() else f"\\x{{{number:x}}}"
