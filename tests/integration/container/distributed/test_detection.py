"""Which cluster a process finds in its environment; and the other decisions that need no TensorFlow."""

from __future__ import annotations

import subprocess
import sys


def test_importing_the_package_imports_no_tensorflow() -> None:
    script = "import sys; from container import distributed; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
