"""The notebook about bandwidths, at a small size: a training in containers on a slower link."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from estimators.backends.docker import links

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.soak
def test_the_notebook_of_models_and_bandwidths_runs(image: str, home: Path, tmp_path: Path) -> None:
    why = links.refusal()
    if why is not None:
        pytest.skip(why)
    notebook, target = ROOT / "notebooks/04-models-and-bandwidths.ipynb", tmp_path / "executed.ipynb"
    program = (
        f"import sys\nfrom pathlib import Path\nsys.path.insert(0, {str(notebook.parent)!r})\nimport execute\n"
        f"execute.execute(Path({str(notebook)!r}), Path({str(target)!r}), timeout=500)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "FLEETFIT_NOTEBOOKS": "small"},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=570,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "small, 100mbit, Horovod" in target.read_text(encoding="utf-8")
