"""What a process tells while it imports."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from container.system import importing


def test_imports_are_told_once_a_second_each_name_once(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    now = [100.0]
    monkeypatch.setattr(importing, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with importing.Importing(told.append) as found:
        assert sys.meta_path[0] is found
        for later, name, names in (
            (0, "a", "a"),
            (0.5, "b", "a"),
            (1, "a", "a"),
            (0, "c", "ac"),
            (5, "c", "ac"),
            (0, "d", "acd"),
        ):
            now[0] += later
            assert found.find_spec(name) is None
            assert told == list(names)
    assert found not in sys.meta_path and found.names == set("abcd")
