"""A sample of the whole clusters that `make soak` kills and resumes."""

from __future__ import annotations

import random
from pathlib import Path

import clusters
import pytest
import resuming

pytestmark = [pytest.mark.tensorflow, pytest.mark.horovod, pytest.mark.soak]


def test_a_killed_cluster_goes_on_where_its_last_save_was(make: clusters.Make, tmp_path: Path) -> None:
    """Under one strategy and then another, which go on from each other's checkpoints."""
    killer = resuming.Killer(make, tmp_path / "checkpoints", random.Random(7))
    first = killer.kill("mpi", resuming.When.SAVING)
    second = killer.kill("collective_all_reduce", resuming.When.SAVING)
    assert first.trained and second.trained
    assert 0 < first.saved == second.restored < second.saved
