"""Write files atomically, read JSON files that may be missing or damaged, and find the folder of the cache."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any


def cache_root() -> Path:
    """Return the folder of the cache: ``$FLEETFIT_CACHE``, or ``~/.cache/fleetfit`` if the variable is not set."""
    chosen = os.environ.get("FLEETFIT_CACHE")
    return Path(chosen).expanduser().absolute() if chosen else Path.home() / ".cache" / "fleetfit"


def replace(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Replace a file atomically.

    Args:
        path: The file. It may be missing.
        data: The new content.
        mode: The new file's mode, from which the umask is removed. By default, only the owner can read the file.

    Raises:
        OSError: the file cannot be written.
    """
    # Other users may be able to write into the folder. Therefore the temporary file has a name that nobody can guess,
    # and O_EXCL makes sure that the file is new.
    aside = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        try:
            write_all(descriptor, data)
        finally:
            os.close(descriptor)
        os.replace(aside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            aside.unlink()
        raise


def write_all(descriptor: int, data: bytes | bytearray | memoryview) -> None:
    """Write all of the data to a descriptor."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def names_in(folder: str | os.PathLike[str]) -> list[str]:
    """Return the sorted names of a folder's entries. Return an empty list if the folder cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object. Return an empty object if the file is missing or damaged."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file atomically, with mode 0600.

    Raises:
        OSError: the file cannot be written.
    """
    replace(path, json.dumps(value, indent=1).encode() + b"\n")
