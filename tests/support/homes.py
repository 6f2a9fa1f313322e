"""A home for the jobs of each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import clusters
import pytest


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """``$FLEETFIT_HOME``; what still runs at the test's end is killed and removed."""
    monkeypatch.setenv("FLEETFIT_HOME", str(tmp_path / "home"))
    yield tmp_path / "home"
    clusters.kill_everything_of(tmp_path / "home")


@pytest.fixture
def make(tmp_path: Path, home: Path) -> clusters.Make:
    """Makes estimators whose code is given as text."""
    return clusters.Make(tmp_path)
