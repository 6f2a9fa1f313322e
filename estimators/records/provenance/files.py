"""Small files that are replaced whole or not at all, and the cache's folder."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any


def cache_folder() -> Path:
    """``$FLEETFIT_CACHE``, or ``~/.cache/fleetfit``."""
    chosen = os.environ.get("FLEETFIT_CACHE")
    return Path(chosen).expanduser().absolute() if chosen else Path.home() / ".cache" / "fleetfit"


def write_json(path: Path, value: Any, *, make_folder: bool = True) -> None:
    """Replace a JSON file atomically; it is for the user only (0600).

    Args:
        path: The file.
        value: What to write.
        make_folder: Whether to make its folder where there is none; a job's record that was removed stays removed.

    Raises:
        OSError: it cannot be written.
    """
    if make_folder:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(value, file, indent=1)
            file.write("\n")
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise
