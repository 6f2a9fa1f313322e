"""The cache of wheels: whole or absent, whatever happens while it is written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from estimators.provision.wheels import WheelCache


@pytest.fixture
def cache(tmp_path: Path) -> WheelCache:
    return WheelCache(root=tmp_path / "cache")


def test_the_lock_keeps_another_process_out(cache: WheelCache, tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from estimators.provision.progress import StepProgress\n"
        "from estimators.provision.wheels import WheelCache\n"
        "with WheelCache(root=Path(sys.argv[1])).lock('key', StepProgress()):\n"
        "    print('in', flush=True)\n"
    )
    with cache.lock("key"):
        other = subprocess.Popen(
            [sys.executable, "-c", script, str(cache.root)], stdout=subprocess.PIPE, text=True, cwd=Path.cwd()
        )
        assert other.stdout is not None
        assert other.stdout.readline() == "Waiting for another build of the same wheel ...\n"
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(timeout=0.3)
    assert other.communicate(timeout=30)[0] == "in\n"
