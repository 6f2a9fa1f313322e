"""Real trainings: TensorFlow is imported once for many of their jobs."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def imports_are_kept(warm: None) -> None:
    """See ``warm``."""
