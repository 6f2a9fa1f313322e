"""A thousand kills of processes that save checkpoints."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

KILLS = Path(__file__).parents[1] / "training" / "checkpoint" / "kills.py"


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
def test_100_kills_at_random_moments(tmp_path: Path, seed: int) -> None:
    done = subprocess.run(
        [sys.executable, str(KILLS), str(tmp_path / "checkpoints"), "100", str(seed)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["kills"] >= 100
