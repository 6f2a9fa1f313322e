"""The public names are listed once, are there, and cost nothing before they are used."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import estimators


def test_every_public_name_is_there() -> None:
    for name in estimators.__all__:
        assert getattr(estimators, name).__name__ in (name, "CollectiveAllReduce"), name
    assert set(estimators.__all__) == set(estimators._ORIGINS)
    assert sorted(estimators.__all__) == sorted(set(estimators.__all__))
    assert set(estimators.__all__) <= set(dir(estimators))


def test_type_checkers_see_the_same_names() -> None:
    text = Path(estimators.__file__).read_text(encoding="utf-8")
    block = text[text.index("if TYPE_CHECKING:") : text.index("#: Module -> the public names")]
    seen = set(re.findall(r"\b([A-Za-z]\w+)\b", re.sub(r"from \S+ import", "", block))) - {"if", "TYPE_CHECKING"}
    assert seen == set(estimators.__all__)


def test_there_are_no_others() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Tensorflow'"):
        _ = estimators.Tensorflow  # type: ignore[attr-defined]
