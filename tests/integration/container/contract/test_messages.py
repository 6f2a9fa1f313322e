"""Messages are lines of JSON, whatever the pieces in which they come."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import container


def test_a_sender_needs_little() -> None:
    """The wrapper around each rank is on the way of every launch."""
    code = "import sys; sys.path[:0] = [sys.argv[1]]; import container.toolkit.rank; print(*sys.modules)"
    root = Path(container.__file__ or "").parents[1]
    said = subprocess.run([sys.executable, "-I", "-S", "-c", code, root], capture_output=True, text=True, check=True)
    assert not {"json", "re", "typing", "subprocess", "logging"} & set(said.stdout.split())
