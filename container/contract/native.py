"""Where an environment has the compiled reader of Pipe mode."""

from __future__ import annotations

import hashlib
from pathlib import Path


def library_file(prefix: Path, source: Path) -> Path:
    """The library; it need not be there.

    Args:
        prefix: The environment, ``sys.prefix``.
        source: Its source. Another version of it has another name: what is there fits who asks, or is not found.
    """
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:12]
    return prefix / "lib" / "fleetfit" / f"pipe_reader-{digest}.so"
