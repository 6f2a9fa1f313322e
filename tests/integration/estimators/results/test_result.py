"""A job's result, from its events."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from synthetic import result


def test_it_loads_without_tensorflow_and_pandas(tmp_path: Path) -> None:
    result().save(tmp_path / "result.json")
    program = (
        "import sys\nfrom estimators import Result\n"
        f"print(Result.load({str(tmp_path)!r}).samples_per_second)\n"
        "heavy = [n for n in ('tensorflow', 'pandas', 'matplotlib') if n in sys.modules]\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr.strip() == "", done.stderr
    assert float(done.stdout) == pytest.approx(3200)
