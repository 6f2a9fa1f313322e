"""A home for the jobs of a test."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "cluster"))  # at the end: it hides nothing

import clusters


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """``$FLEETFIT_HOME``; what still runs at the test's end is killed and removed."""
    monkeypatch.setenv("FLEETFIT_HOME", str(tmp_path / "home"))
    yield tmp_path / "home"
    clusters.kill_everything_of(tmp_path / "home")
