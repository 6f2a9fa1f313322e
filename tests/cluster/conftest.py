"""Every test has a home of its own, and leaves no process behind."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))  # at the end: it hides nothing

import clusters


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """``$FLEETFIT_HOME``; what still runs at the test's end is killed."""
    monkeypatch.setenv("FLEETFIT_HOME", str(tmp_path / "home"))
    yield tmp_path / "home"
    clusters.kill_everything_of(tmp_path / "home")


@pytest.fixture
def make(tmp_path: Path, home: Path) -> clusters.Make:
    """Makes estimators whose code is given as text."""
    return clusters.Make(tmp_path)
