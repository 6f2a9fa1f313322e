"""PipeModeDataset against real agents and FIFOs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKS = Path(__file__).with_name("checks.py")


@pytest.mark.tensorflow
def test_dataset(tmp_path: Path) -> None:
    paths = os.pathsep.join([str(CHECKS.parent), str(CHECKS.parents[2])])
    done = subprocess.run(
        [sys.executable, str(CHECKS), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": paths, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" ok\n") == CHECKS.read_text().count("\ndef check_")
    assert "PipeModeDataset t_0 total read_bytes: 83" in done.stdout
