"""What one process can take over from another."""

from __future__ import annotations

import resource

import pytest

from container.system import inherited


def test_what_cannot_be_taken_over_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = inherited.taken_down()
    assert inherited.difference({**theirs, "traits": {**theirs["traits"], "nice": 19}}) is not None
    monkeypatch.setattr(resource, "getrlimit", lambda number: (0, 0))
    higher = [[resource.RLIMIT_CORE, 0, resource.RLIM_INFINITY]]
    assert inherited.difference({**theirs, "limits": higher}) == "its resource limits are higher"
