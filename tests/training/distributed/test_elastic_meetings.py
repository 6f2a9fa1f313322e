"""A rank that dies while the ranks meet: the others meet again, and none of them ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.horovod

CHECKS = Path(__file__).with_name("meeting_checks.py")


@pytest.mark.tensorflow
def test_the_others_meet_again() -> None:
    pytest.importorskip("horovod.tensorflow")
    done = subprocess.run(
        [sys.executable, str(CHECKS)],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == 3
    for outcome in found:
        assert outcome["struck"], (outcome, done.stderr)
        assert set(outcome["codes"].values()) == {0}, (outcome, done.stderr)
        assert sorted(outcome["met"]) == [[2, 0, 1], [2, 1, 1]], (outcome, done.stderr)


@pytest.mark.parametrize("check", ["too_few", "leaving"])
def test_the_driver(check: str) -> None:
    """With too few the workers meet and wait there; those that meet while one is told to leave keep their ranks."""
    pytest.importorskip("horovod")
    done = subprocess.run(
        [sys.executable, str(CHECKS.with_name("driver_checks.py")), check],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
