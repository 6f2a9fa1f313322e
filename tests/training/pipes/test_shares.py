"""Which records each rank trains on, under every synchronous strategy."""

from __future__ import annotations

from pathlib import Path

import launching
import pytest

SHARES = [str(Path(__file__).with_name("shares.py"))]
pytestmark = pytest.mark.tensorflow


def passed(ended: launching.Ended) -> None:
    assert ended.code == 0, ended.text


@launching.needs_horovod
@pytest.mark.horovod
def test_shares_of_three_ranks_under_mpirun() -> None:
    passed(launching.mpirun(3, SHARES, TF_USE_LEGACY_KERAS="1"))


@pytest.mark.soak
def test_shares_of_two_ranks_of_a_collective() -> None:
    for ended in launching.collective(2, SHARES, TF_USE_LEGACY_KERAS="0"):
        passed(ended)


def test_shares_of_one_process() -> None:
    passed(launching.alone(SHARES, TF_USE_LEGACY_KERAS="1"))
