"""What unit tests of the SDK share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from estimators.records.record import JobRecord


@pytest.fixture
def record(tmp_path: Path) -> Iterator[JobRecord]:
    made = JobRecord.create("job-1", tmp_path)
    yield made
    made.release()
