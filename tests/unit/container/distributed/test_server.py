"""What a parameter server tells while it imports."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from container.contract import events
from container.distributed.tensorflow import server


def test_imports_are_told_once_a_second_each_name_once(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    now = [100.0]
    monkeypatch.setattr(events, "emit", lambda kind, **data: told.append(kind))
    monkeypatch.setattr(server, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with server.Importing() as importing:
        assert sys.meta_path[0] is importing
        for later, name, number in ((0, "a", 1), (0.5, "b", 1), (1, "a", 1), (0, "c", 2), (5, "c", 2), (0, "d", 3)):
            now[0] += later
            assert importing.find_spec(name) is None
            assert told == ["importing"] * number
    assert importing not in sys.meta_path
