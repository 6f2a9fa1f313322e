"""Regular expressions for RE2 mean what Python's mean."""

from __future__ import annotations

import re
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimators.job.re2_syntax import to_re2


@pytest.mark.parametrize(
    "pattern",
    [r"\bloss: ([0-9]+)", r"(?i)loss: (.)", r"(?<=a)(b)", r"(?=a)(b)", r"(a)\1", r"(a*)*", r"(a|b*)+", r"(a){1001}"],
)
def test_what_re2_lacks_or_does_otherwise_is_not_translated(pattern: str) -> None:
    assert to_re2(pattern) is None


def test_what_both_have_is_written_down_as_python_understands_it() -> None:
    assert to_re2("(?:a+)+$([0-9])") == r"(?:(?:a){1,}){1,}\z([0-9])"
    assert to_re2("x{,3}(.?)") == r"(?:x){0,3}((?:.){0,1})"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python's own, of this form
        assert to_re2("[[:alpha:]](1)") == r"[\x{5b}\x{3a}alph]\x{5d}(1)"


_ATOMS = st.sampled_from(
    ["a", "b", "0", " ", ".", "[ab]", "[^a]", r"\d", r"\s", r"\w", r"\W", "[0-9.]", "^", "$", "(?:a|ab)", r"\.", "é"]
)
_PIECES = st.tuples(_ATOMS, st.sampled_from(["", "*", "+", "?", "*?", "+?", "??", "{2}", "{,2}", "{1,3}"])).map("".join)
_SEQUENCES = st.lists(_PIECES, min_size=1, max_size=4).map("".join)
_PATTERNS = st.recursive(
    _SEQUENCES,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("|".join), inner.map("(?:{})+".format), st.tuples(inner, inner).map("".join)
    ),
    max_leaves=4,
)


@settings(max_examples=300, deadline=None)
@given(_PATTERNS, _PATTERNS, st.lists(st.text("ab01. é\x1f\x0b\u00a0٣", max_size=12), min_size=5, max_size=5))
def test_both_catch_the_same(before: str, group: str, texts: list[str]) -> None:
    re2 = pytest.importorskip("re2", reason="google-re2 is not installed")
    pattern = f"(?:{before})({group})"
    try:
        python = re.compile(pattern)
    except re.error:
        return  # a repetition of nothing, say
    translated = to_re2(pattern)
    if translated is None:
        return
    linear = re2.compile(translated.encode())
    for text in texts:
        one, other = python.search(text), linear.search(text.encode())
        assert (one is None) == (other is None), text
        if one is not None:
            assert one.span() == tuple(len(text.encode()[:at].decode()) for at in other.span()), text
            caught = other.group(1)
            assert one.group(1) == (caught.decode() if caught is not None else None), text
