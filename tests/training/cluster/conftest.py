"""Every test has a home of its own, and leaves no process behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from places import pytest_generate_tests

__all__ = ["pytest_generate_tests"]


@pytest.fixture(autouse=True)
def own_home(home: Path) -> None:
    """A home, also where a test does not ask for it."""
